"""Reports for operators: `drift` between declared and running engines, the `dry_run` of proposed files, `views` of a
round and rows of models, Prometheus `metrics`.
"""
