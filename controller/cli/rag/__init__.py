"""`roundhouse rag`: documents and searches, through a gateway. `command` declares the commands, `client` asks the
gateway, `adding` finds files and adds them."""
