"""`roundhouse rag`: documents and searches. `command` declares the commands, `client` asks the gateway, adds files and
measures searches by `ranking`, `transferring` exports and imports documents.
"""
