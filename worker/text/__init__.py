"""Text before and after generation: prompts, answer objects, thoughts, tool calls, grammars. Pure."""
