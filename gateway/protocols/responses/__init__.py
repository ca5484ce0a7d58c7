"""OpenAI's responses, translated into chat completions. Pure."""
