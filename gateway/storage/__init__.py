"""Stored responses, conversations and chat completions, in one SQLite file. `store` runs all its statements in one
thread, `schema` declares the tables; each kind of object has a package, whose registry answers requests.
"""
