"""Admission of requests to replicas: slots, KV cache tokens, queues, fair shares of tenants, circuit breakers. Pure."""
