"""The routes of stored objects, resumable streams, tools, MCP, documents and searches, one module per route group."""
