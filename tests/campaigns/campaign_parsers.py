"""What one program writes and another one reads."""

from __future__ import annotations

from tests.campaigns.pytest_run import run_tests
from tests.campaigns.record import Outcome

ABOUT = """
Generated definitions: the real parsers of llama-server and vLLM take the command lines, and mean the same. Generated
names, labels, logs and texts of engines: what is written is read, however it is cut.
"""
TESTS = (
    "tests/properties/test_llama_server_command.py",
    "tests/properties/test_vllm_command.py",
    "tests/properties/test_worker_text.py",
    "tests/unit/test_worker_hf_vocabulary.py",
    "tests/unit/test_worker_onnx.py",
    "tests/unit/test_docker_labels.py",
    "tests/unit/test_process_naming.py",
    "tests/unit/test_log_parts.py",
)


def run(seed: int) -> Outcome:
    """The tests with full counts."""
    return run_tests(TESTS, seed)
