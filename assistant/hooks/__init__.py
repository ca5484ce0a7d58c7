"""Features of inference requests, by hooks.

They are stored responses (`response_hooks`, `response_session` over WebSocket) and chat completions
(`completion_hooks`), resumable streams (`stream_hooks`), documents (`document_hooks`), and calls of tools between
rounds of the model (`tool_loop`).
"""
