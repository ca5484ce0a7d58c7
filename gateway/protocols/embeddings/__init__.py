"""OpenAI's embeddings, passed through and shortened where the engine cannot. Pure."""
