"""Vectors of texts, and rankings, from models behind the gateway. `client` asks the gateway, `prefixes` knows what a
model family wants before a query and a passage."""
