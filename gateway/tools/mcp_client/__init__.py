"""Clients of the declared MCP servers: connections that are kept, what the servers offer, and bounds on their answers."""
