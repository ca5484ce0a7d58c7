"""The journal of events: changes of models' states, edits, loads, failures. `round_events` compares two rounds,
`recorder` writes the entries, `event_log` keeps them over restarts and streams them.
"""
