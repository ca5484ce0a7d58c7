"""The journal: what happened, in order, kept over restarts."""
