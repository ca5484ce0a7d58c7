"""OpenAI's chat completions, and completions where an engine speaks them. Pure."""
