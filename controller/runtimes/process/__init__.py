"""Replicas as processes of this host, without Docker. `runtime` implements `Runtime`, `launch` starts an engine in a
process session of its own, `records` lets a restarted controller find it, `exit_watch` reports its end.
"""
