"""What all API families share that are translated into chat completions. Pure."""
