"""Retrieval: its stores against a model of them, tenants told apart, and kills during ingestion."""

from __future__ import annotations

from tests.campaigns.pytest_run import suite

ABOUT = """
Generated operations on both vector stores (Qdrant Edge, and a Qdrant server whose part a fake has) against a
dictionary: what is written is found, what is deleted or hidden is not, and nobody finds anything of another tenant's.
Kills of the embedded store at each step of a write and of an optimization: it opens again with all that was durable.
Generated additions, replacements, deletions and restarts of two tenants with the same ids and texts: each sees exactly
its own documents, and every hit is the bytes of its document's text at its offsets. 50 kills of the program while
documents are accepted, replaced and deleted: nothing accepted is lost, nothing is found in part, no chunk is stale.
"""
TESTS = (
    "tests/integration/retrieval/test_vector_store_model.py",
    "tests/integration/retrieval/test_edge_durability.py",
    "tests/properties/retrieval/test_isolation.py",
    "tests/integration/retrieval/test_killed_ingestion.py",
    "tests/e2e/test_documents.py",
)
run = suite(TESTS)
