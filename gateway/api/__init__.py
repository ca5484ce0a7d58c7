"""The HTTP routes. `declare` makes a route of its `RouteSpec`, `inference` is the table of what engines answer,
`forwarding` forwards `/v1/admin/*` to the controller, `schemas` describes bodies.
"""
