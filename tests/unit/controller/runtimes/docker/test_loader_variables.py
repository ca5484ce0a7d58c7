"""What an image may tell the dynamic loader of NVIDIA's hooks, which run on the host."""

from __future__ import annotations

import pytest

from controller.runtimes.docker.loader_variables import find_loader_problem

CUDA = ("PATH=/usr/local/nvidia/bin:/usr/bin", "LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64")
"""Of nvidia/cuda, and so of vLLM's and llama.cpp's images; later ones say /usr/local/cuda/lib64."""


@pytest.mark.parametrize(
    "environment",
    [
        (),
        CUDA,
        ("LD_LIBRARY_PATH=/usr/local/cuda/lib64",),
        ("LD_LIBRARY_PATH=/opt/proc/lib:/device/lib",),
        ("LD_PRELOAD=", "LD_LIBRARY_PATH="),
        ("OLD_PRELOAD=/a.so", "A=LD_PRELOAD=/a.so"),
    ],
)
def test_images_that_may_have_gpus(environment: tuple[str, ...]) -> None:
    assert find_loader_problem("i:1", environment, {}) is None


@pytest.mark.parametrize(
    "variable",
    [
        "LD_PRELOAD=/proc/self/cwd/its.so",
        "LD_PRELOAD=libtcmalloc.so",
        "LD_AUDIT=/proc/self/cwd/its.so",
        "LD_DEBUG_OUTPUT=/etc/cron.d/x",
        "LD_LIBRARY_PATH=/proc/self/cwd/lib",
        "LD_LIBRARY_PATH=/usr/lib:/./proc//self/cwd",
        "LD_LIBRARY_PATH=/usr/../proc/1/cwd",
        "LD_LIBRARY_PATH=//proc/self/cwd",
        "LD_LIBRARY_PATH=/dev/fd/7",
        "LD_LIBRARY_PATH=/proc",
        "LD_LIBRARY_PATH=lib",
        "LD_LIBRARY_PATH=./lib;/usr/lib",
        "LD_LIBRARY_PATH=/usr/lib:",
        "LD_LIBRARY_PATH=:/usr/lib",
        "LD_LIBRARY_PATH=/usr/lib;$ORIGIN/x",
        "LD_LIBRARY_PATH=/usr/$LIB/x",
    ],
)
def test_images_that_get_no_gpus(variable: str) -> None:
    name = variable.partition("=")[0]
    assert find_loader_problem("i:1", (*CUDA[:1], variable), {"PATH": "/bin"}) == (
        f"image i:1 sets {name}, which NVIDIA's hooks would follow on the host as root (CVE-2025-23266), so it gets no"
        f" GPUs: take another image, or set {name} in the definition's `env` (empty: none)"
    )


@pytest.mark.parametrize("value", ["", "/opt/lib/mine.so"])
def test_what_the_definition_sets_itself_is_the_operator_s(value: str) -> None:
    assert find_loader_problem("i:1", ("LD_PRELOAD=/proc/self/cwd/its.so",), {"LD_PRELOAD": value}) is None
