"""API keys, tenants and rate limits. Pure: the time is an argument."""
