"""`make images` and `images/build`: which images are built, and how `docker build` is called for each."""

from __future__ import annotations

import os
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from tests.supply_chain.locks import REPOSITORY

FOUR = ["controller", "gateway", "worker", "llama-server"]
FAKE_DOCKER = """#!/bin/sh
# A Docker Engine that answers, and writes down each build: one argument a line, then an empty one.
[ "$1" = build ] || exit 0
printf '%s\\n' "$@" '' >>"$FAKE_DOCKER_BUILDS"
"""


def _run(tmp_path: Path, *command: str) -> tuple[subprocess.CompletedProcess[str], list[list[str]]]:
    """The command, and the arguments of each build that it asked the fake Docker Engine for."""
    fake, builds = tmp_path / "bin" / "docker", tmp_path / "builds"
    fake.parent.mkdir(exist_ok=True)
    fake.write_text(FAKE_DOCKER)
    fake.chmod(0o755)
    # What the make that runs the tests was told, such as ARGS, is not for this one.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "ARGS"))}
    env = {**inherited, "PATH": f"{fake.parent}:{os.environ['PATH']}", "FAKE_DOCKER_BUILDS": str(builds)}
    done = subprocess.run(command, cwd=REPOSITORY, env=env, capture_output=True, text=True, check=False)
    text = builds.read_text() if builds.exists() else ""
    return done, [each.split("\n") for each in text.split("\n\n") if each]


def _make(tmp_path: Path, *variables: str) -> list[list[str]]:
    done, builds = _run(tmp_path, "make", "images", *variables)
    assert (done.returncode, done.stderr) == (0, "")
    return builds


def _after(arguments: list[str], flag: str) -> list[str]:
    return [value for before, value in pairwise(arguments) if before == flag]


def test_four_images_are_built_where_no_engine_is_named(tmp_path: Path) -> None:
    builds = _make(tmp_path)
    assert [_after(each, "--tag") for each in builds] == [[f"roundhouse/{name}:latest"] for name in FOUR]
    assert [_after(each, "--file") for each in builds] == [[f"images/{name}/Dockerfile"] for name in FOUR]
    assert not any(_after(each, "--build-arg") for each in builds)


@pytest.mark.parametrize(
    ("engine", "cuda"),
    [("exllamav3", "nvidia/cuda:13.2.1-devel-ubuntu24.04"), ("vllm", "nvidia/cuda:13.0.2-devel-ubuntu24.04")],
)
def test_an_engine_that_compiles_kernels_gets_an_image_of_its_own(tmp_path: Path, engine: str, cuda: str) -> None:
    [build] = _make(tmp_path, f"ENGINES={engine}")
    assert _after(build, "--tag") == [f"roundhouse/worker-{engine}:latest"]
    assert _after(build, "--file") == ["images/worker-cuda/Dockerfile"]
    assert _after(build, "--build-arg") == [f"BASE_IMAGE={cuda}", f"ENGINE={engine}"]
    assert build[-1] == "."


def test_engines_without_kernels_of_their_own_share_the_worker_s_image(tmp_path: Path) -> None:
    builds = _make(tmp_path, "ENGINES=onnx exllamav3 ct2 vllm")
    assert [_after(each, "--tag") for each in builds] == [
        ["roundhouse/worker-exllamav3:latest"],
        ["roundhouse/worker-vllm:latest"],
        ["roundhouse/worker:latest"],
    ]
    assert _after(builds[2], "--build-arg") == ["ENGINES=onnx ct2"]
    assert not any("ENGINES=" in argument for build in builds[:2] for argument in build)


def test_what_the_build_may_be_told(tmp_path: Path) -> None:
    options = (
        "--base worker-vllm=mirror.example/cuda:13.0.2-devel-ubuntu24.04 --build-arg MAX_JOBS=16 "
        "--build-arg TORCH_CUDA_ARCH_LIST=9.0 --prefix ours --tag 7"
    )
    [build] = _make(tmp_path, "ENGINES=vllm", f"ARGS={options}")
    assert _after(build, "--tag") == ["ours/worker-vllm:7"]
    assert _after(build, "--build-arg") == [
        "BASE_IMAGE=mirror.example/cuda:13.0.2-devel-ubuntu24.04",
        "ENGINE=vllm",
        "MAX_JOBS=16",
        "TORCH_CUDA_ARCH_LIST=9.0",
    ]


def test_an_image_of_an_engine_may_be_named_as_well(tmp_path: Path) -> None:
    done, [build] = _run(tmp_path, "images/build", "worker-exllamav3")
    assert done.returncode == 0
    assert _after(build, "--tag") == ["roundhouse/worker-exllamav3:latest"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--engines", "exllama"), "no engine exllama; there are: exllamav3 vllm llama-cpp ct2 onnx litert-lm mcp"),
        (("--engines", " "), "--engines names no engine"),
        (("--engines",), "--engines needs a value"),
        (("worker-onnx",), "no image worker-onnx; there are: controller gateway worker llama-server worker-exllamav3"),
        (("--engines", "vllm", "gateway"), "--engines and names of images exclude each other"),
    ],
)
def test_what_cannot_be_built(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    done, builds = _run(tmp_path, "images/build", *arguments)
    assert (done.returncode, builds) == (2, [])
    assert f"images/build: {words}" in done.stderr
