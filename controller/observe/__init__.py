"""Observation of engines and gateways. `prober` asks engines for their health and reads their logs while they load,
`health` interprets the answers, `gateway_hub` keeps the gateways' reports, the table they work by, and the health of
remote models.
"""
