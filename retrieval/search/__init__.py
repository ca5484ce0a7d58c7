"""Searches. `service` answers one: candidates from the vector store, `fusion` of both rankings, texts from the catalog,
and a rerank model where that is asked for."""
