"""Operators' requests: rows of models, loads, unloads, resets, logs. `service` answers them and waits for their effect,
`override_rules` decides what a load or unload changes, `rows` builds the answers, `log_reader` reads engines' logs.
"""
