"""Requests that share a KV cache: by generated mixes, and by 40 clients of mixed lengths at a real llama-server."""

from __future__ import annotations

from tests.campaigns.pytest_run import suite

ABOUT = """
Generated lengths and limits at simulated engines that, like llama-server, fail all requests when their cache is full.
With right counts an engine never has more tokens than it holds; with any counts, all that can be sent again is
answered; a large request is not overtaken for ever; short ones have all slots. Then 40 clients of mixed lengths at a
real llama-server of 4,096 tokens, 20 times: no 500.
"""
TESTS = (
    "tests/properties/gateway/admission/test_tokens.py",
    "tests/integration/gateway/test_token_admission.py",
)
run = suite(TESTS)
