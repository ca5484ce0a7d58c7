"""Access control. `authenticator` checks API keys, `access_rules` scopes, admin addresses, and the Host and Origin
headers. `middleware` applies them to routes of the web framework.
"""
