"""`roundhouse top`: a live view of states, requests, tokens per second and memory. `source` reads the admin API and the
gateway's metrics, `view` renders them.
"""
