"""The gateway's Prometheus metrics."""
