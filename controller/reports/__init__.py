"""Reports for operators: `drift` between declared and running engines, the `dry_run` of proposed files, `views` of a
round, Prometheus `metrics`.
"""
