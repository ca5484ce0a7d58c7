"""Draws dashboards as pictures, from the answers of a Prometheus: what a reader of the docs sees of them."""
