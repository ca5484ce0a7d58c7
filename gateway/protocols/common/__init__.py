"""Shared by all API families: the dialect interface, conversations, request bodies, errors and streams. Pure."""
