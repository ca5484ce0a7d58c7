"""Dialects and translations between API families."""

from __future__ import annotations

from tests.campaigns.pytest_run import suite

ABOUT = """
Generated conversations, answers and streams. A dialect writes again what it reads, cuts change nothing, a stream says
what the whole answer says, one that breaks off ends as documented, garbage harms nothing, no error's text keeps a path
of the server, and no prompt is refused for its length that fits by a real tokenizer.
"""
TESTS = (
    "tests/properties/gateway/protocols/test_dialects.py",
    "tests/properties/gateway/protocols/test_large_bodies.py",
    "tests/properties/gateway/protocols/test_odd_answers.py",
    "tests/properties/gateway/protocols/test_request_fields.py",
    "tests/properties/gateway/protocols/anthropic/test_messages.py",
    "tests/properties/gateway/protocols/responses/test_responses.py",
    "tests/properties/gateway/protocols/embeddings/test_embeddings.py",
    "tests/properties/gateway/protocols/rerank/test_rerank.py",
    "tests/properties/gateway/protocols/test_file_paths.py",
    "tests/properties/gateway/protocols/test_system_messages.py",
    "tests/unit/gateway/protocols/chat/test_reasoning.py",
)
run = suite(TESTS)
