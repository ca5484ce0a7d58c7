"""The worker's HTTP surface, its engine threads, its start and its end."""
