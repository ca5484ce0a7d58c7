"""The link to the controller. `link` receives routing tables and sends reports, `inflight` counts requests per replica
and demand per model, `remote_prober` probes remote models.
"""
