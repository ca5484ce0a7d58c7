"""Code that several programs share and none owns: listening sockets, program logs, SQLite files, the gateways' token.
Imports none of the programs.
"""
