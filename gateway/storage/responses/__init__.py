"""Stored responses, and responses in the background while they are made. `registry` finds them, `event_log` keeps their
events for readers that come later.
"""
