"""Engines with a server of their own, which a worker launches."""
