"""What the worker reads and writes of texts: prompts, answers, calls of tools. Pure."""
