"""The gateway's Prometheus metrics, and the engines' on one page.

`registry` holds them, `request_metrics` declares those that requests count in, `fast_counters` makes one count cost one
addition; `engine_scraper` reads engines when Prometheus asks.
"""
