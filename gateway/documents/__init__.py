"""Extract the texts of files in requests, each in a process of its own with limits."""
