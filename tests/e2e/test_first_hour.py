"""`tests/gpu/run --cpu --small`: the whole first hour on a machine without a GPU, and the run that goes on after it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.steps import STEPS
from tests.support import installed_engines
from tests.support.ci_cache import REPOSITORY

pytestmark = pytest.mark.engines

RUNS = {"llama.grows", "swap.pinned", "oom.load", "oom.serving", "kill.engine", "host.system"} | {
    f"forecast.{cache}.{context}" for cache in ("f16", "q8") for context in ("4k", "32k", "128k")
}
"""The steps that measure main memory where there is no GPU."""


def run(folder: Path, *options: str) -> tuple[int, str]:
    """The exit code and the output of one run, which asks no Docker Engine."""
    own = {"ROUNDHOUSE_PYTHON": sys.executable, "DOCKER_HOST": f"unix://{folder}/no-docker.sock"}
    command = ["tests/gpu/run", "--as-is", "--cpu", "--small", "--folder", str(folder), *options]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=os.environ | own, capture_output=True, text=True, timeout=200, check=False
    )
    return done.returncode, done.stdout + done.stderr


def steps_in(folder: Path) -> dict[str, dict[str, Any]]:
    content: dict[str, Any] = json.loads((folder / "results.json").read_text())
    assert content["host"] == {"device": "cpu", "runtime": "process", "small": True, "gpus": []}
    steps: dict[str, dict[str, Any]] = content["steps"]
    return steps


def test_every_step_ends_in_the_table_and_in_the_file(folder: Path) -> None:
    installed_engines.needed("binary")
    code, output = run(folder)
    steps = steps_in(folder)
    assert code == 0, output
    assert list(steps) == [step.name for step in STEPS]
    assert {name for name, result in steps.items() if result["status"] == "passed"} == RUNS
    assert not [name for name, result in steps.items() if result["status"] == "failed"]
    reasons = {name: result["reason"] for name, result in steps.items() if name not in RUNS}
    others = {"host.docker", "vllm.bytes", "vllm.no-network"}
    assert {reason for name, reason in reasons.items() if name not in others} == {"no GPU"}
    assert reasons["vllm.bytes"] == "left out by --small"
    for step in STEPS:
        assert f"│ {step.name} " in output, "each step has its row"
    assert f"{len(RUNS)} passed, 0 failed, {len(STEPS) - len(RUNS)} not tried" in output

    figures = steps["forecast.f16.4k"]["figures"]
    assert figures["after_prompt_mib"] >= figures["after_load_mib"] > 0
    assert figures["predicted_mib"] > 0
    assert steps["oom.load"]["figures"]["last_error"].startswith("out of memory")
    assert steps["swap.pinned"]["figures"]["swaps"] == 3
    assert sorted(path.name for path in folder.glob("rh*")) == [], "the Roundhouse's own folders are gone"

    code, again = run(folder, "--again", "swap")
    assert code == 0, again
    assert again.count(", in an earlier run") == len(RUNS) - 1
    assert steps_in(folder)["forecast.f16.4k"] == steps["forecast.f16.4k"]
    assert steps_in(folder)["swap.pinned"] != steps["swap.pinned"]
