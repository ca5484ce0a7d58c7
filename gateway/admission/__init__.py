"""Who may ask which replica now, who waits, in which order, and who is refused. Pure."""
