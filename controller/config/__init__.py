"""Desired-state files, parsed to validated definitions; each problem has its file, line and field. `yaml12` parses one
file, `merge` combines all, `validate` checks models, `keys` checks API keys, `debounce` decides when the result comes
into force. Only `read` and `last_good` do I/O.
"""
