"""Which request gets a slot of which replica, which waits, which is refused. `admission` is the entry, `model_queue`
holds a model's replicas and waiting requests, `fair_queue` orders them by tenant, `circuit_breaker` leaves out failing
replicas, `token_pool` counts tokens of a KV cache, `prefix_affinity` prefers replicas that have the prompt's beginning
cached. Pure: the time is an argument.
"""
