"""What `vram_mib` means for vLLM: the share of each GPU that it takes, which the planner claims."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

import pytest

from controller.artifacts.facts import HfFolder
from controller.engines import ENGINES, spec_hash
from controller.engines.base import ClaimedGpu, RenderContext
from controller.engines.memory import Prediction
from controller.engines.vllm_fields import VllmFields

GIB = 2**30
CONTEXT = RenderContext("docker", "m", PurePosixPath("/models"), "0.0.0.0", 8000, PurePosixPath("/cache"))
BACKENDS = pytest.mark.parametrize("backend", ["vllm", "vllm_serve"])


def _define(backend: str = "vllm", **fields: Any) -> VllmFields:
    content = {"backend": backend, "model_path": "m", "gpus": 1, "vram_mib": 20_000}
    definition = ENGINES[backend].definition.model_validate(content | fields)
    assert isinstance(definition, VllmFields)
    return definition


def _shares(definition: VllmFields, *gpus: ClaimedGpu) -> list[str]:
    """What follows each `--gpu-memory-utilization`."""
    assert definition.backend is not None
    argv = ENGINES[definition.backend].render_command(definition, replace(CONTEXT, gpus=gpus)).argv
    return [value for flag, value in pairwise(argv) if flag == "--gpu-memory-utilization"]


@BACKENDS
@pytest.mark.parametrize(
    ("claim", "totals", "share"),
    [
        (20_000, (81_559,), "0.2452"),
        (81_559, (81_559,), "1.0"),
        (73_403, (81_559,), "0.8999"),
        (20_000, (81_559, 40_960), "0.4882"),
        (1, (81_559,), "0.0001"),
    ],
)
def test_what_is_declared_becomes_the_share_of_the_smallest_gpu(
    backend: str, claim: int, totals: tuple[int, ...], share: str
) -> None:
    gpus = [ClaimedGpu(f"GPU-{total}", claim, total) for total in totals]
    assert _shares(_define(backend, gpus=len(gpus), vram_mib=claim), *gpus) == [share]
    assert claim == 1 or float(share) * min(totals) <= claim, "never more than is claimed"


@BACKENDS
@pytest.mark.parametrize(
    ("fields", "shares"),
    [
        ({"vllm_gpu_memory_utilization": 0.3}, ["0.3"]),
        ({"vllm_kv_cache_memory_bytes": GIB}, ["0.01"]),
        ({"extra_args": ["--gpu-memory-utilization", "0.5"]}, ["0.5"]),
        ({"extra_args": ["--gpu_memory_utilization=0.5"]}, []),
        ({"extra_args": ["--kv-cache-memory-bytes", "1G"]}, []),
        ({"vram_mib": None}, []),
    ],
)
def test_what_says_more_rules(backend: str, fields: dict[str, Any], shares: list[str]) -> None:
    gpu = ClaimedGpu("GPU-a", 20_000, 80_000)
    assert _shares(_define(backend, **fields), gpu) == shares


def test_before_the_gpus_are_known_nothing_is_said_of_them() -> None:
    assert _shares(_define()) == []
    assert _shares(_define(gpus=0)) == []


@BACKENDS
def test_an_edit_of_it_restarts_those_alone_that_it_binds(backend: str) -> None:
    def hashed(**fields: Any) -> str:
        return spec_hash(_define(backend, **fields), None, "m")

    assert hashed(vram_mib=20_000) != hashed(vram_mib=30_000) != hashed(vram_mib=None)
    for free in ({"vllm_gpu_memory_utilization": 0.3}, {"vllm_kv_cache_memory_bytes": GIB}, {"gpus": 0}):
        assert hashed(vram_mib=20_000, **free) == hashed(vram_mib=None, **free), free


def test_the_forecast_is_what_is_declared() -> None:
    folder = HfFolder(5 * GIB, {}, {"bf16": 4 * GIB})

    def forecast(**fields: Any) -> Prediction:
        prediction = ENGINES["vllm"].predict_memory(_define(**fields), {"m": folder})
        assert isinstance(prediction, Prediction)
        return prediction

    bound = forecast()
    assert (bound.gpu_share, bound.gpu.weights, bound.gpu.total) == (None, 4 * GIB, 20_000 * 2**20)
    assert forecast(vram_mib=1000).gpu.total == 5 * GIB, "what it needs at least"
    assert forecast(vllm_gpu_memory_utilization=0.3).gpu_share == 0.3
    assert forecast(vram_mib=None).gpu_share == 0.92
