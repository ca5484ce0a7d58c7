"""Secrets: which fields hold them, and how they are kept out of texts."""
