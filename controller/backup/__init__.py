"""Backups of an installation: one archive, what goes into it, and how it comes back."""
