"""Backups of an installation. `snapshot` copies each part consistently while the programs run, `archive` writes and
reads the tar.gz, `manifest` decides which members of an archive are valid, `restoring` puts them back.
"""
