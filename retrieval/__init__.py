"""Retrieval: a program that keeps documents, and finds passages of them again. It alone opens its stores; clients reach
it through the gateway, which authenticates them and resolves the tenant."""
