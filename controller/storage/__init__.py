"""The state folder. `state_dir` locks it and stores what must outlive the controller, `atomic_write` replaces files as
a whole, `gateway_token` makes the gateways' token.
"""
