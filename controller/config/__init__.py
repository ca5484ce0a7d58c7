"""Reading the desired-state folder: bytes to values with places, merged, validated, settled. Only `read` does I/O,
and `last_good`, which keeps what was last in force.
"""
