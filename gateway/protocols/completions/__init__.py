"""OpenAI's completions, translated for engines that serve chat completions alone. Pure."""
