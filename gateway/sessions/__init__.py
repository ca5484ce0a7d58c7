"""Sessions: which requests belong to one conversation, and which conversations each replica has in its cache."""
