"""Malformed HTTP on both sides of the gateway, and requests generated from its documents."""

from __future__ import annotations

from tests.campaigns.pytest_run import suite

ABOUT = """
Requests and answers with inserted, deleted, flipped and repeated bytes, cut and ended anywhere. The gateway answers
each with its own error or serves it, never with 500; no request smuggles another; the next client is served. Requests
from the OpenAPI documents of the gateway and of the whole Roundhouse, by schemathesis, valid or not: no 500, and no
undocumented answer. Every route in other spellings and with odd Hosts, with each sort of key: the plain path's verdict.
Anything that is no key in Authorization and x-api-key: 401 of one shape, without effect.
"""
TESTS = (
    "tests/properties/gateway/server/test_bad_http.py",
    "tests/properties/gateway/tenancy/test_credentials.py",
    "tests/properties/gateway/upstream/test_client.py",
    "tests/integration/gateway/upstream/test_engine_http.py",
    "tests/integration/gateway/test_body_memory.py",
    "tests/integration/gateway/test_early_answers.py",
    "tests/integration/gateway/test_openapi.py",
    "tests/unit/assistant/tools/test_depth_cut.py",
    "tests/integration/gateway/test_access_matrix.py",
    "tests/e2e/test_admin_openapi.py",
)
run = suite(TESTS)
