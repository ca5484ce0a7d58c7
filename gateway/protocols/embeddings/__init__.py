"""OpenAI's embeddings. Pure."""
