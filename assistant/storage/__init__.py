"""Stored responses, conversations and chat completions, in one SQLite file. `store` runs all its statements in one
thread, `database` and `conversation_table` have the tables; `responses`, `conversations` and `completions` answer
requests.
"""
