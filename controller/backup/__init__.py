"""Backups of an installation. `snapshot` copies each part consistently while the programs run, `documents` those of
retrieval, `archive` writes and reads the tar.gz, `manifest` decides which members of an archive are valid, `restoring`
puts them back, `files` has what all of them do with files.
"""
