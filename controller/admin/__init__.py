"""Operators' requests: runtime declarations, loads, unloads, resets, logs. `service` answers them and waits for their
effect, `override_rules` decides what a load or unload changes. `hosts` shows, drains and forgets hosts.
"""
