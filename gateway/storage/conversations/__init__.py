"""Stored conversations: their items as a tree, and locks, so that one response at a time writes into a conversation."""
