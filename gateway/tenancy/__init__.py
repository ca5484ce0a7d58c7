"""API keys, clients without a key, and their rate limits. Pure."""
