"""What is wanted: the files and the overrides, resolved to a desired state."""
