"""The state folder, and files that are replaced as a whole."""
