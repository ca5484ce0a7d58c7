"""Connections to sources: which addresses may be connected to, redirects, and who gets to see a token."""
