"""API keys and their rate limits. Pure: `now` is an argument."""
