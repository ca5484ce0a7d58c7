"""Heads of model files that are damaged or hostile."""

from __future__ import annotations

from tests.campaigns.pytest_run import suite

ABOUT = """
100,000 mutations of GGUF files, split sets, folders of safetensors with their JSON, and CTranslate2 models: flipped
bits, cut files, extreme counts and lengths, nested arrays, wrong types, repeated keys, invalid UTF-8, endless JSON.
Each is read, or refused with a printable message that names the file. Memory and function calls are bounded by the
size of the files.
"""
TESTS = ("tests/properties/controller/artifacts/test_mutated_heads.py",)
run = suite(TESTS)
