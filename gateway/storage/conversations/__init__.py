"""Stored conversations: items as a tree, and `locks` that let one response at a time write into each."""
