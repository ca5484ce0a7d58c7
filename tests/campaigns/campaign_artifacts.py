"""Heads of model files that are damaged or hostile."""

from __future__ import annotations

from tests.campaigns.pytest_run import run_tests
from tests.campaigns.record import Outcome

ABOUT = """
100,000 mutations of GGUF files, split sets, folders of safetensors with their JSON, and CTranslate2's: bits flipped,
files cut, counts and lengths at their extremes, arrays in arrays, other types, keys twice, texts that are no UTF-8,
JSON without end. Each is read, or refused in words that name the file and can be shown anywhere; memory and calls of
functions stay within a bound that follows from the size of the files.
"""
TESTS = ("tests/properties/controller/artifacts/test_mutated_heads.py",)


def run(seed: int) -> Outcome:
    """The tests with full counts."""
    return run_tests(TESTS, seed)
