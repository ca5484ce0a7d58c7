"""The decision what to do: `plan` compares the desired and the observed state, and makes a `model_turn` for each model.
`classify` sorts replicas into buckets, `starting` starts missing replicas, `rolling` replaces those of an old
definition, `placement` assigns GPUs and memory, `eviction` chooses models that make room, `draining` decides when a
replica is empty, `backoff` when to try again. Pure: the time is an argument.
"""
