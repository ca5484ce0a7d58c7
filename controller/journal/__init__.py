"""The journal: an ordered log of what happened, kept over restarts."""
