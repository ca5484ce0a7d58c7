"""The gateway: the one public address. It authenticates requests, queues them, and relays each to an engine by the last
routing table that the controller sent.
"""
