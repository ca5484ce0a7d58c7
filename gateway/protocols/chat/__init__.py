"""OpenAI's chat completions, and completions of engines that serve these. Pure."""
