"""The gateway's Prometheus metrics. `registry` declares them, `fast_counters` makes one count cost one addition."""
