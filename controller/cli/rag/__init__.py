"""`roundhouse rag`: documents and searches. `command` declares the commands, `client` asks the gateway, `adding` finds
files and adds them, `transferring` exports and imports documents, `evaluation` measures searches, and `backup` works on
a state folder, without a gateway."""
