"""Connections of clients: HTTP/1.1, TLS and WebSocket, reading of requests, writing of answers."""
