"""Resumable streams: by generated interleavings, cut at every byte, and in gateways that are killed."""

from __future__ import annotations

from tests.campaigns.pytest_run import suite

ABOUT = """
Generated interleavings of requests, reads, stops, replacements, garbage collection and restarts against a model of the
rules. A short answer of each engine and API family, read on from every byte. 500 streams dropped and read on at once. A
gateway killed in the middle of 50 streams, 30 times: each reader had a true prefix of what the next gateway tells,
which ends explicitly. 1,000 tries at another tenant's id and at an unknown one. 2,000 streams that their clients leave:
each token that came is counted.
"""
TESTS = (
    "tests/properties/assistant/streams/test_streams.py",
    "tests/integration/gateway/test_aborted_streams.py",
    "tests/integration/assistant/test_resumed_engines.py",
    "tests/integration/assistant/test_resumed_limits.py",
    "tests/integration/assistant/test_resumed_process.py",
    "tests/integration/assistant/test_resumed_streams.py",
)
run = suite(TESTS)
