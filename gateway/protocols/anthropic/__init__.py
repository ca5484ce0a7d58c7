"""Anthropic's messages: passed through, or translated to chat completions. Pure."""
