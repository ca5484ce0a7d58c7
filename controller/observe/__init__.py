"""Observes engines by probes and logs, gateways by their links and reports, and remote models through gateways."""
