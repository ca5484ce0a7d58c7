"""Observation of engines and gateways. `prober` asks engines for their health, `health` interprets the answers,
`load_progress` reads engines' logs, `gateway_hub` keeps the gateways' reports and the table they work by,
`remote_health` follows remote models.
"""
