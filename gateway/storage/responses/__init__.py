"""Stored responses, and running responses that can be read by id. `registry` finds them, `event_log` keeps the events
of background responses for readers.
"""
