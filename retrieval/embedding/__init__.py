"""Vectors of texts, and rankings, from models behind the gateway. `client` asks the gateway, `batch_size` says for how
many texts at a time, `prefixes` knows what a model family wants before a query and a passage."""
