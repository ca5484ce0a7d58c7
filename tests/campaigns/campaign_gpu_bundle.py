"""The bundle for a GPU host without a network, made, unpacked and run."""

from __future__ import annotations

from tests.campaigns.pytest_run import suite

ABOUT = """
`tests/gpu/run --bundle --cpu` makes a bundle in parts of 30 MiB. It is unpacked in a network namespace without a way
out, by a Python that has nothing else, and four steps are run from it alone. It takes two to three minutes, most of
them for wheels and engines; the gate does not run it.
"""
TESTS = ("tests/e2e/test_gpu_bundle.py",)
run = suite(TESTS)
