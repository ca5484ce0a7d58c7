"""One inference request, from the client to an engine and back, without a task of its own. `dispatcher` opens an
`exchange` per request, `attempt` is one try at one replica, `body_relay` passes the engine's answer on,
`client_response` writes it to the client, `accounting` settles limits and metrics at the end.
"""
