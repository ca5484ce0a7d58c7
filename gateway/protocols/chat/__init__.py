"""OpenAI's chat completions and completions, passed through and adapted to each engine. Pure."""
