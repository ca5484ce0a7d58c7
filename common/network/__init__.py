"""Connections to hosts that others name: only to addresses that were checked, by their own resolution of the name;
and the one reader of what they answer."""
