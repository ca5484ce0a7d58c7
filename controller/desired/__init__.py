"""The desired state. `source` combines desired-state files, operators' overrides and demand, `resolve` computes the
result, `config_diff` compares two declared states, `upgrade_check` two versions of Roundhouse.
"""
