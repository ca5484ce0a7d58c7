"""What the programs say to each other and to clients: definitions, overrides, statuses, the routing table, documents,
downloads, error codes. It imports nothing of ours.
"""
