"""Stored responses, conversations and chat completions: one SQLite file, and one thread that owns it."""
