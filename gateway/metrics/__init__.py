"""The gateway's Prometheus metrics, and the engines' on one page.

`request_metrics` holds them, and those that requests count in, where one count costs one addition; `state_metrics` has
those that are read off other parts; `engine_scraper` reads engines when Prometheus asks; `history` keeps the last hour
of each model. `api/operations` serves all.
"""
