"""One inference request, from the client to an engine and back, without a task of its own. `dispatcher` opens an
`exchange` for an `api_spec`, which goes through `admission_stage` (slot, queue, `load_wait`) and `engine_stage`
(attempts); `exchange_state` has the legal transitions. `attempt` is one try at one replica, `body_relay` passes the
engine's answer on, `client_response` writes it to the client, `accounting` settles limits and metrics at the end.
Features take part by `hooks`: `file_hooks`, `grounding_hooks`, `file_search_hooks`, `completion_hooks`,
`response_hooks`, `session_hooks`, `stream_hooks`, `progress_hooks`, `tool_loop_hooks`. `inner_requests` makes the
gateway's own requests; `tool_loop` has a response made of several, with calls of tools between them, `fan_out` asks for
many answers in pieces, and `round_client` has what both share.
`progress` words what a client is told of its request, `progress_board` knows who is to be told when time passes.
"""
