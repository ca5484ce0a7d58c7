"""The engine's side of HTTP/1.1, by callbacks. `client` sends requests, `connection` parses answers, and keeps
connections open between requests.
"""
