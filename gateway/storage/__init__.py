"""What the gateway keeps: responses, conversations, chat completions; one file, and one thread that has it."""
