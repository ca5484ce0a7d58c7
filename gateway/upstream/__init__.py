"""The engine's side of HTTP/1.1, by callbacks. `client` sends requests, `connection` parses answers, `pool` keeps
connections open between requests.
"""
