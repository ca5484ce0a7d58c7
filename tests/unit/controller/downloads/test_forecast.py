"""Where a model fits that is not here yet, as the plan itself would place it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from controller.artifacts.facts import Artifact, Gguf, HfFolder, SizedArtifact, UnreadArtifact
from controller.artifacts.model_roots import ModelRoots
from controller.artifacts.read import files_below, read_artifact
from controller.downloads.forecast import ModelPaths, forecast_memory, summarize_fits
from controller.gpus import Gpu
from controller.schema.model_files import DeviceFit, MemoryForecast
from controller.state import (
    HOST,
    Health,
    ObservedReplica,
    ObservedState,
    Phase,
    ReplicaId,
)
from tests.support.gguf_files import write_llama

ROOTS = ModelRoots((Path("/models"),))
MAIN = "u/r/m.gguf"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """The facts of a small model: half a GiB with its default context."""
    folder = tmp_path_factory.mktemp("models")
    write_llama(folder / "m.gguf", layers=4, width=512, heads=8, kv_heads=4, vocabulary=4096)
    return read_artifact("m.gguf", files_below(ModelRoots((folder,)), "m.gguf"))


def gpu(index: int, total_mib: int, used_mib: int = 0) -> Gpu:
    return Gpu(f"GPU-{index}", index, "H100", total_mib, used_mib)


def replica(model: str, claims: dict[str, int], *, ready: bool = True) -> ObservedReplica:
    return ObservedReplica(
        ReplicaId(model, 0, "hash"),
        f"rh-{model}",
        Phase.RUNNING,
        1.0,
        health=Health.READY,
        ready_since=2.0 if ready else None,
        claims=claims,
    )


def forecast(model: Artifact, observed: ObservedState | None, backend: str | None = None) -> MemoryForecast:
    return forecast_memory(ModelPaths(MAIN, backend=backend), {MAIN: model}, ROOTS, observed)


def test_a_gpu_with_room_beside_another_model(model: Artifact) -> None:
    observed = ObservedState(
        at=10.0,
        gpus=(gpu(0, 24_000, 12_000),),
        replicas=(replica("qwen", {"GPU-0": 12_000}),),
        host_mib=64_000,
    )
    found = forecast(model, observed)
    assert (found.summary, found.backend, found.reason) == ("fits on GPU 0 beside qwen", "llama_server", None)
    on_gpu, in_memory = found.devices
    assert (on_gpu.gpus, on_gpu.free_mib, on_gpu.total_mib, on_gpu.beside) == (["0"], 12_000, 24_000, ["qwen"])
    assert on_gpu.fits
    assert on_gpu.fits_alone
    assert 0 < on_gpu.needed_mib < 12_000
    assert (in_memory.gpus, in_memory.fits, in_memory.total_mib) == ([], True, 64_000)


def test_one_that_is_loading_there_is_a_neighbour_and_no_obstacle(model: Artifact) -> None:
    replicas = (replica("qwen", {"GPU-0": 1000}, ready=False),)
    observed = ObservedState(at=10.0, gpus=(gpu(0, 24_000),), replicas=replicas, host_mib=64_000)
    assert forecast(model, observed).summary == "fits on GPU 0 beside qwen"


def test_a_gpu_that_another_model_fills(model: Artifact) -> None:
    observed = ObservedState(
        at=10.0,
        gpus=(gpu(0, 24_000, 23_990),),
        replicas=(replica("qwen", {"GPU-0": 23_990, HOST: 100}),),
        host_mib=64_000,
    )
    found = forecast(model, observed)
    assert found.summary == "fits on GPU 0 once qwen is gone, and now in main memory beside qwen"
    assert (found.devices[0].fits, found.devices[0].fits_alone) == (False, True)
    assert "of 24000 MiB" in (found.devices[0].reason or "")


def test_a_gpu_that_strangers_fill_is_not_made_free_by_unloading(model: Artifact) -> None:
    observed = ObservedState(at=10.0, gpus=(gpu(0, 24_000, 23_990),), host_mib=64_000)
    found = forecast(model, observed)
    assert found.summary == "fits in main memory; no GPU has room for it"
    assert not found.devices[0].fits_alone


def test_two_gpus_where_one_is_too_small(model: Artifact) -> None:
    assert isinstance(model, Gguf)
    model = replace(model, blocks=(2**30,) * 4)
    one = forecast(model, ObservedState(at=10.0, gpus=(gpu(0, 24_000),), host_mib=64_000)).devices[0].needed_mib
    small = ObservedState(at=10.0, gpus=(gpu(0, one - 1), gpu(1, one - 1)), host_mib=64_000)
    found = forecast(model, small)
    assert [each.gpus for each in found.devices] == [["0"], ["1"], ["0", "1"], []]
    assert found.summary == "fits on GPUs 0, 1 together"
    assert found.devices[2].needed_mib < one


def test_no_room_anywhere(model: Artifact) -> None:
    found = forecast(model, ObservedState(at=10.0, host_mib=64))
    assert found.summary.startswith("does not fit: needs ")
    assert "of the 64 MiB that engines may take" in found.summary
    assert not found.devices[0].fits_alone


def test_gpus_that_cannot_be_read_are_unknown_and_not_none(model: Artifact) -> None:
    found = forecast(model, ObservedState(at=10.0, gpus=None, host_mib=64_000))
    assert found.summary == "fits in main memory; the GPUs cannot be read now"


@pytest.mark.parametrize(
    ("artifact", "backend", "words"),
    [
        (SizedArtifact(5), None, "was not read"),
        (UnreadArtifact("m.gguf: it ends early", 7), None, "m.gguf: it ends early"),
        (SizedArtifact(5), "no_such", "there is no backend 'no_such'"),
        (SizedArtifact(5), "openai_remote", "openai_remote"),
    ],
)
def test_what_is_not_known_is_said(artifact: Artifact, backend: str | None, words: str) -> None:
    found = forecast(artifact, ObservedState(at=10.0, host_mib=64_000), backend)
    assert found.summary.startswith("what it takes is not known: ")
    assert found.devices == []
    assert found.reason
    if "not read" not in words:
        assert words in found.summary


def test_before_the_first_observation_nothing_is_said_of_room(model: Artifact) -> None:
    assert "first observation" in forecast(model, None).summary


def test_a_folder_needs_a_backend_by_name() -> None:
    folder = HfFolder(10, {"model_type": "llama"}, {"bf16": 10})
    found = forecast_memory(ModelPaths("u/r"), {"u/r": folder}, ROOTS, ObservedState(at=1.0, host_mib=64_000))
    assert "name it with `--backend`" in found.summary


def test_an_engine_that_needs_a_gpu_and_takes_a_share_of_it() -> None:
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 1024,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "intermediate_size": 2048,
        "vocab_size": 1000,
        "max_position_embeddings": 2048,
    }
    folder = HfFolder(2**28, config, {"bf16": 2**28})
    observed = ObservedState(at=1.0, gpus=(gpu(0, 24_000),), host_mib=64_000)
    found = forecast_memory(ModelPaths("u/r", backend="vllm_serve"), {"u/r": folder}, ROOTS, observed)
    assert found.summary == "fits on GPU 0"
    assert found.devices[0].needed_mib > 12_000, "vLLM takes a share of the whole GPU"
    without = forecast_memory(
        ModelPaths("u/r", backend="vllm_serve"), {"u/r": folder}, ROOTS, ObservedState(at=1.0, host_mib=64_000)
    )
    assert without.summary.startswith("what it takes is not known: without a GPU vLLM takes a share of main memory")


def test_a_forecast_is_what_the_plan_does(model: Artifact) -> None:
    """The forecast is the plan's own placement: what fits there is placed there."""
    observed = ObservedState(at=10.0, gpus=(gpu(0, 24_000),), host_mib=64_000)
    needed = forecast(model, observed).devices[0].needed_mib
    exact = ObservedState(at=10.0, gpus=(gpu(0, needed),), host_mib=64_000)
    assert forecast(model, exact).devices[0].fits
    short = ObservedState(at=10.0, gpus=(gpu(0, needed - 1),), host_mib=64_000)
    assert not forecast(model, short).devices[0].fits


def fit(*gpus: str, fits: bool = True, alone: bool = True, beside: tuple[str, ...] = ()) -> DeviceFit:
    return DeviceFit(
        gpus=list(gpus),
        needed_mib=1,
        fits=fits,
        fits_alone=alone,
        beside=list(beside),
        reason=None if fits else "needs 1 MiB",
    )


@pytest.mark.parametrize(
    ("fits", "words"),
    [
        ([fit("0"), fit("1", beside=("a", "b"))], "fits on GPU 0, or on GPU 1 beside a and b"),
        ([fit("0", fits=False, beside=("a",)), fit("1")], "fits on GPU 1"),
        ([fit("0", fits=False), fit(fits=False, alone=False)], "fits on GPU 0 once its memory is gone"),
        ([fit(beside=("a", "b", "c", "d", "e"))], "fits in main memory beside a, b, c and 2 more"),
        ([fit(fits=False, beside=("a",))], "fits in main memory once a is gone"),
        ([fit("0", fits=False, alone=False), fit(fits=False, alone=False)], "does not fit: needs 1 MiB"),
        ([], "not known where it fits"),
    ],
)
def test_the_summary(fits: list[DeviceFit], words: str) -> None:
    assert summarize_fits(fits) == words
