"""OpenAI's completions, translated to chat completions for engines that serve those alone. Pure."""
