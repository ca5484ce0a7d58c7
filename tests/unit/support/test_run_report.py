"""What a test run says at its end."""

from __future__ import annotations

import pytest

from tests.support.report import summarize_times
from tests.support.require import COMMAND, require, summarize_skips

ABSENT = "docker: no Docker Engine answers: [Errno 2]"


def test_three_lines_say_what_was_skipped_why_and_what_to_do() -> None:
    reasons = [ABSENT, "vllm: vLLM is not installed: run .ci/vllm once", ABSENT + " again", "this host has GPUs"]
    assert summarize_skips(reasons) == [
        "skipped: 4 tests (2 for docker, 1 for vllm, 1 for this host has GPUs)",
        f"why: {ABSENT}; vllm: vLLM is not installed: run .ci/vllm once; this host has GPUs",
        f"to run them: {COMMAND}",
    ]
    assert summarize_skips([]) == ["skipped: nothing"]
    assert summarize_skips(["docker: " + "x" * 200 + "\nmore"])[1] == f"why: docker: {'x' * 82}..."


def test_what_is_required_fails_in_place_of_a_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUNDHOUSE_TEST_REQUIRE", "vllm, docker")
    require("docker", True, "it is there")
    with pytest.raises(pytest.fail.Exception, match="docker is required"):
        require("docker", False, "it is not there")
    with pytest.raises(pytest.skip.Exception, match="litertlm: not written"):
        require("litertlm", False, "not written")


def test_seconds_are_summed_by_folder_and_file() -> None:
    assert summarize_times({"tests/a/test_x.py": 1.0, "tests/b/test_y.py": 0.5, "tests/b/test_z.py": 2.0}) == [
        "      3.5 s in all, added up over processes",
        "      2.5 s tests/b",
        "           2.0 s test_z.py",
        "           0.5 s test_y.py",
        "      1.0 s tests/a",
        "           1.0 s test_x.py",
    ]
