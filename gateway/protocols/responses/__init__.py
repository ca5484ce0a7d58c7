"""OpenAI's responses, translated to chat completions. Pure."""
