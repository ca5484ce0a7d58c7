"""Where models come from. A source lists files with their sizes and hashes; it never fetches their bytes."""
