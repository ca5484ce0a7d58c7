"""Derives what operators and gateways see of models: states, load progress, the routing table. Pure."""
