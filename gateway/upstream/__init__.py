"""The engine's side: connections, their pool, and HTTP/1.1 by callbacks."""
