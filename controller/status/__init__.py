"""What operators and gateways are told of models: states, loads, the routing table. Pure."""
