"""Backups of an installation. `command` has the commands, `snapshot` copies each part consistently while the programs
run, and writes and reads the archive, `manifest` decides which members of an archive are valid, `restoring` puts them
back.
"""
