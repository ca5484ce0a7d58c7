"""Clients of the declared MCP servers: kept connections, what the servers offer, and bounds on their answers."""
