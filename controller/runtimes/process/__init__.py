"""Replicas as processes of this host, without Docker. `runtime` implements `Runtime`, `launch` starts an engine in a
process session of its own and records it for a restarted controller, `groups` watches and ends it.
"""
