"""The worker's HTTP server: its routes, its engine threads, its start and stop."""
