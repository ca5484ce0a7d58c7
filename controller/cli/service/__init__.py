"""`roundhouse service`: Roundhouse as a systemd service. `unit` renders the unit file, `install` writes and removes it,
`run` is what systemd starts.
"""
