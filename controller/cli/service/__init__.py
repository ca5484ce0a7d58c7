"""`roundhouse service`: the unit of systemd, where it is written, and what it runs."""
