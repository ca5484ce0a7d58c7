"""Which request gets a slot of which replica, which waits, which is refused. `admission` is the entry, `ticket` has a
request and the replica that it enters, `fair_queue` holds a model's replicas and waiting requests, ordered by tenant,
`circuit_breaker` leaves out failing replicas, `prefix_affinity` prefers replicas that have the prompt's beginning
cached. Pure: the time is an argument.
"""
