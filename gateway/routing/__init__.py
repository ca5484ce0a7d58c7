"""The routing table in force, and which models it lets be asked for."""
