"""What one program writes and another one reads."""

from __future__ import annotations

from tests.campaigns.pytest_run import suite

ABOUT = """
Generated definitions: the real parsers of llama-server and vLLM accept the command lines with the same meaning.
Generated names, labels, logs, conditions of images and texts of engines: what is written is read back, however it is
cut.
"""
TESTS = (
    "tests/properties/controller/engines/test_llama_server_command.py",
    "tests/properties/controller/engines/test_vllm_command.py",
    "tests/properties/worker/text/test_text.py",
    "tests/unit/worker/hf/test_vocabulary.py",
    "tests/unit/worker/engines/test_onnx.py",
    "tests/properties/controller/runtimes/docker/test_driver_requirements.py",
    "tests/unit/controller/runtimes/docker/test_labels.py",
    "tests/unit/controller/runtimes/test_naming.py",
    "tests/unit/controller/runtimes/test_logs.py",
)
run = suite(TESTS)
