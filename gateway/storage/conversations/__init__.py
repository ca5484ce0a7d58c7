"""Conversations that are stored: their items as a tree, and who may write into one now."""
