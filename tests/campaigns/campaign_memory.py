"""Memory and GPUs: formulas, readings, placement."""

from __future__ import annotations

from tests.campaigns.pytest_run import suite

ABOUT = """
Generated GPUs, claims and models. Placement never gives out more memory than there is, a failed reading is unknown and
never empty, formulas grow with their inputs, and any bytes as a model file give a size or an error in words.
"""
TESTS = (
    "tests/properties/controller/engines/test_memory_formulas.py",
    "tests/properties/controller/planning/test_placement.py",
    "tests/properties/controller/runtimes/test_gpu_readings.py",
    "tests/unit/controller/sizing/test_history.py",
    "tests/unit/controller/runtimes/test_model_files.py",
)
run = suite(TESTS)
