"""Desired-state files, parsed to validated definitions; each problem has its file, line and field. `yaml12` parses
and merges files, `validate` checks models, keys and tools, `debounce` decides when the result comes into force. Only
`parse`, which reads the folder, and `debounce`, which keeps the last good state, do I/O.
"""
