"""Adapters to engines' libraries: code that concerns one library and not the engine interface."""
