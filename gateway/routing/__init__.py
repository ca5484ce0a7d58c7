"""The routing table in force. `table` finds a request's model and key in it, and tells whether the model takes requests
now, or why not; `model_events` tells clients of its changes. Pure.
"""
