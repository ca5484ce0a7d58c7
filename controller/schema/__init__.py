"""The wire contract between controller, gateways and clients: common fields of definitions, overrides, statuses, the
routing table, admin answers, error codes. The gateway imports this package of the controller and no other; it imports
nothing of Roundhouse itself.
"""
