"""OpenAI's embeddings; vectors are shortened here where an engine cannot. Pure."""
