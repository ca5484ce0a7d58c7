"""The routing table in force, and whether its models can serve requests."""
