"""One inference request, from the client to an engine and back, without a task of its own. `dispatcher` opens an
`exchange`, which goes through `admission_stage` (slot, queue, load) and `engine_stage` (attempts); `client_response`
makes the client's answer of the engine's. `hooks` has what it is opened with. Features take part by hooks: here
`session_hooks`, `progress_hooks`, `fan_out` (many answers, asked for in pieces) and `plain_responses`; others are
another package's. `inner_requests` makes the gateway's own requests. `progress` words what a client is told of its
request, and knows who is to be told when time passes.
"""
