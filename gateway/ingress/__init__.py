"""Access control. `authenticator` checks API keys, `admin_gate` scopes and admin addresses, `host_check` and `cors` the
Host and Origin headers. `middleware` applies them to routes of the web framework, `response_headers` renders the
gateway's own headers.
"""
