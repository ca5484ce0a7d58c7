"""The desired state. `source` puts it together from `file_source` (desired-state files), `override_store` (operators'
loads and unloads) and `demand_ledger` (requests), which `persistence` keeps over restarts. `resolve` computes the
result, `config_diff` compares two declared states, `upgrade_check` two versions of Roundhouse.
"""
