"""OpenAI's completions, from engines that speak chat completions alone. Pure."""
