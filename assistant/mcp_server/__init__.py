"""Roundhouse as an MCP server: the tools with which an agent lists, loads, unloads and reads models, within its key's
scopes. `tools` describes them, `handlers` ask the controller and retrieval, `protocol` speaks MCP by its official
library, which is imported with the first request.
"""
