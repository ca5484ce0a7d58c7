"""Chat completions that are stored."""
