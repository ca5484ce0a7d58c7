"""Sessions: requests that belong to one conversation, and which replica keeps what it computed of it."""
