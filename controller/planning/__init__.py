"""The decision what to do: `plan` compares the desired and the observed state. `classify` sorts replicas into buckets,
`placement` assigns GPUs and memory, `eviction` chooses models that make room, `draining` decides when a replica is
empty, `backoff` when to try again. Pure: the time is an argument.
"""
