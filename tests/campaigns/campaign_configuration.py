"""Desired-state files: parsing, merging, settling, and what must not be shown of them."""

from __future__ import annotations

from tests.campaigns.pytest_run import suite

ABOUT = """
Generated files, sequences of reads, and loads. Merging is associative and every value comes from a file that has it;
any text gives definitions or problems with a place; a file that is missing for a moment removes nothing; the last good
state is read again unchanged; no row, difference, log or problem shows a secret; no link makes a model path leave the
models folders.
"""
TESTS = (
    "tests/properties/controller/config/test_parse.py",
    "tests/properties/controller/config/test_merge.py",
    "tests/properties/controller/config/test_debounce.py",
    "tests/properties/controller/config/test_last_good.py",
    "tests/properties/controller/config/test_paths.py",
    "tests/properties/controller/runtimes/test_model_paths.py",
    "tests/properties/controller/engines/test_load_fields.py",
    "tests/properties/controller/redaction/test_patterns.py",
)
run = suite(TESTS)
