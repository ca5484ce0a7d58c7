"""Tools that a caller may have called for a model: built-in ones, and those of the declared MCP servers. `ToolRunner`
applies the key's permission, the check of the arguments, the time limit and the output cap to every call.
"""
