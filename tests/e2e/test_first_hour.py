"""`tests/gpu/run --cpu --small`: the whole first hour on a machine without a GPU, and the run that goes on after it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.gpu.steps import STEPS
from tests.support import installed_engines
from tests.support.ci_cache import REPOSITORY

pytestmark = pytest.mark.engines

RUNS = {
    *("llama.grows", "swap.pinned", "oom.load", "oom.serving", "kill.engine", "kill.streams", "speed.llama"),
    "host.system",
} | {f"forecast.{cache}.{context}" for cache in ("f16", "q8") for context in ("4k", "32k", "128k")}
"""The steps that measure main memory where there is no GPU."""


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    """A run, which asks no Docker Engine."""
    own = {"ROUNDHOUSE_PYTHON": sys.executable, "DOCKER_HOST": f"unix://{folder}/no-docker.sock"}
    command = ["tests/gpu/run", "--as-is", "--cpu", "--small", "--folder", str(folder), *options]
    pipe, merged = subprocess.PIPE, subprocess.STDOUT
    return subprocess.Popen(command, cwd=REPOSITORY, env=os.environ | own, stdout=pipe, stderr=merged, text=True)


def run(folder: Path, *options: str) -> tuple[int, str]:
    """The exit code and the output of one run."""
    with start(folder, *options) as process:
        output = process.communicate(timeout=200)[0]
    return process.returncode, output


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
    others = {"host.docker", "vllm.bytes", "vllm.no-network", "speed.vllm", "kill.vllm-streams", "swap.vllm"}
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

    assert steps["kill.streams"]["figures"]["clients"] == {"told": 8}
    speeds = steps["speed.llama"]["figures"]
    assert {"direct.1", "gateway.1", "direct.4", "gateway.4", "ratio.1", "ratio.4"} <= speeds.keys()
    assert all(speeds[each]["tokens_per_s"] > 0 for each in ("direct.4", "gateway.4"))

    code, again = run(folder, "--again", "swap.pinned")
    assert code == 0, again
    assert again.count(", in an earlier run") == len(RUNS) - 1
    assert steps_in(folder)["forecast.f16.4k"] == steps["forecast.f16.4k"]
    assert steps_in(folder)["swap.pinned"] != steps["swap.pinned"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_stopped_ends_with_its_results_and_leaves_no_engine(folder: Path, number: int) -> None:
    installed_engines.needed("binary")
    with start(folder, "--only", "host.system", "kill.engine", "forecast") as process:
        assert process.stdout is not None
        told = ""
        while "forecast.f16.4k " not in told:
            told = process.stdout.readline()
            assert told, "it ended by itself"
        process.send_signal(number)
        output = process.communicate(timeout=60)[0]
    assert process.returncode == 130, output
    assert "│ forecast.f16.4k " in output
    assert "│ forecast.q8.128k " not in output
    assert "gpu: stopped; what has a result is in" in output
    passed = {name for name, result in steps_in(folder).items() if result["status"] == "passed"}
    assert {"host.system", "kill.engine", "forecast.f16.4k"} <= passed
    assert sorted(path.name for path in folder.glob("rh*")) == []
    assert [each.pid for each in psutil.process_iter() if str(folder) in " ".join(_arguments(each))] == []


def _arguments(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
