"""The routing table in force. `live_routes` holds it, `table` finds a request's model and key in it, `availability`
tells whether a model takes requests now, or why not. Pure.
"""
