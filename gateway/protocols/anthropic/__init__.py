"""Anthropic's messages, passed through or translated into chat completions. Pure."""
