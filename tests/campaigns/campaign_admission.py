"""Who is admitted when: slots, order, fairness, rate limits, and no slot that leaks."""

from __future__ import annotations

from tests.campaigns.pytest_run import suite

ABOUT = """
Generated arrivals, ends, cancellations, new routing tables and failures of replicas. No slot leaks, no request is
overtaken for ever, tenants get their shares, the place that a client is told is the order of service, and no rate
limit is exceeded in any window. The same over sockets through a whole gateway, while many clients leave and engines
fail.
"""
TESTS = (
    "tests/properties/gateway/admission/test_admission.py",
    "tests/properties/gateway/admission/test_fair_queue.py",
    "tests/properties/gateway/tenancy/test_rate_limits.py",
    "tests/properties/gateway/routing/test_routing.py",
    "tests/unit/gateway/admission/test_prefix_affinity.py",
    "tests/integration/gateway/test_admission.py",
    "tests/integration/gateway/test_faults.py",
    "tests/integration/gateway/test_link.py",
    "tests/e2e/test_gateway_load.py",
)
run = suite(TESTS)
