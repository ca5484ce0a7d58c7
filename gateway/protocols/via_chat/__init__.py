"""API families that are translated into chat completions. Pure."""
