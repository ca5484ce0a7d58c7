"""The vector store embedded: Qdrant Edge, one child process per collection.

Every call of Qdrant Edge holds the interpreter's lock: flushing 100,000 new points stopped all other threads for 0.4 s,
loading them for 0.3 s, building their indexes for 20 s, and some damaged files end the process. So `shard_process` has
the shard, `connection` speaks to it, `collection` keeps one collection served, and `optimizer` works on a copy.
"""
