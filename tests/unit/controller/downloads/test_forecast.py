"""Where a model fits that is not here yet, as the plan itself would place it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contract.model_files import DeviceFit, MemoryForecast
from controller.artifacts.heads import Artifact, Gguf, HfFolder, SizedArtifact, UnreadArtifact
from controller.artifacts.model_roots import ModelRoots
from controller.artifacts.read import files_below, read_artifact
from controller.downloads.forecast import ModelPaths, forecast_memory, forecast_size, measure_rooms, summarize_fits
from controller.hosts import HOST, Gpu
from controller.state import Health, ObservedReplica, ObservedState, Phase, ReplicaId
from tests.support.gguf_files import write_llama
from tests.support.world import observe

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


def qwen(claims: dict[str, int], ready_since: float | None = 2.0) -> ObservedReplica:
    known: dict[str, Any] = {"health": Health.READY, "ready_since": ready_since, "claims": claims}
    return ObservedReplica(ReplicaId("qwen", 0, "hash"), "rh-qwen", Phase.RUNNING, 1.0, **known)


def seen(*gpus: Gpu, **fields: Any) -> ObservedState:
    known: dict[str, Any] = {"gpus": gpus, "host_mib": 64_000}
    return observe(10.0, **known | fields)


def forecast(model: Artifact, observed: ObservedState | None, backend: str | None = None) -> MemoryForecast:
    return forecast_memory(ModelPaths(MAIN, backend=backend), {MAIN: model}, ROOTS, observed)


def test_a_gpu_with_room_beside_another_model(model: Artifact) -> None:
    found = forecast(model, seen(gpu(0, 24_000, 12_000), replicas=(qwen({"GPU-0": 12_000}),)))
    assert (found.summary, found.backend, found.reason) == ("fits on GPU 0 beside qwen", "llama_server", None)
    on_gpu, in_memory = found.devices
    assert (on_gpu.gpus, on_gpu.free_mib, on_gpu.total_mib, on_gpu.beside) == (["0"], 12_000, 24_000, ["qwen"])
    assert on_gpu.fits
    assert on_gpu.fits_alone
    assert 0 < on_gpu.needed_mib < 12_000
    assert (in_memory.gpus, in_memory.fits, in_memory.total_mib) == ([], True, 64_000)
    loading = seen(gpu(0, 24_000), replicas=(qwen({"GPU-0": 1000}, ready_since=None),))
    assert forecast(model, loading).summary == "fits on GPU 0 beside qwen", "a neighbour, and no obstacle"


def test_a_gpu_that_another_model_fills_and_one_that_strangers_fill(model: Artifact) -> None:
    filled = gpu(0, 24_000, 23_990)
    found = forecast(model, seen(filled, replicas=(qwen({"GPU-0": 23_990, HOST: 100}),)))
    assert found.summary == "fits on GPU 0 once qwen is gone, and now in main memory beside qwen"
    assert (found.devices[0].fits, found.devices[0].fits_alone) == (False, True)
    assert "of 24000 MiB" in (found.devices[0].reason or "")
    found = forecast(model, seen(filled))
    assert found.summary == "fits in main memory; no GPU has room for it"
    assert not found.devices[0].fits_alone


def test_two_gpus_where_one_is_too_small(model: Artifact) -> None:
    assert isinstance(model, Gguf)
    model = replace(model, blocks=(2**30,) * 4)
    one = forecast(model, seen(gpu(0, 24_000))).devices[0].needed_mib
    found = forecast(model, seen(gpu(0, one - 1), gpu(1, one - 1)))
    assert [each.gpus for each in found.devices] == [["0"], ["1"], ["0", "1"], []]
    assert found.summary == "fits on GPUs 0, 1 together"
    assert found.devices[2].needed_mib < one


def test_no_room_anywhere_gpus_that_cannot_be_read_and_no_observation_yet(model: Artifact) -> None:
    found = forecast(model, seen(host_mib=64))
    assert found.summary.startswith("does not fit: needs ")
    assert "of the 64 MiB that engines may take" in found.summary
    assert not found.devices[0].fits_alone
    unread = forecast(model, seen(gpus=None))
    assert unread.summary == "fits in main memory; the GPUs cannot be read now", "unknown, and not none"
    assert "first observation" in forecast(model, None).summary


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
    found = forecast(artifact, seen(), backend)
    assert found.summary.startswith("what it takes is not known: ")
    assert found.devices == []
    assert found.reason
    if "not read" not in words:
        assert words in found.summary


def test_a_folder_needs_a_backend_by_name_and_one_that_takes_a_share_needs_a_gpu() -> None:
    config: dict[str, Any] = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 1024, "num_hidden_layers": 4,
        "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 2048, "vocab_size": 1000,
        "max_position_embeddings": 2048,
    }  # fmt: skip
    folder = {"u/r": HfFolder(2**28, config, {"bf16": 2**28})}
    assert "name it with `--backend`" in forecast_memory(ModelPaths("u/r"), folder, ROOTS, seen()).summary
    paths = ModelPaths("u/r", backend="vllm_serve")
    found = forecast_memory(paths, folder, ROOTS, seen(gpu(0, 24_000)))
    assert found.summary == "fits on GPU 0"
    assert found.devices[0].needed_mib > 12_000, "vLLM takes a share of the whole GPU"
    without = forecast_memory(paths, folder, ROOTS, seen())
    assert without.summary.startswith("what it takes is not known: without a GPU vLLM takes a share of main memory")


def test_a_forecast_is_the_plans_own_placement(model: Artifact) -> None:
    needed = forecast(model, seen(gpu(0, 24_000))).devices[0].needed_mib
    assert forecast(model, seen(gpu(0, needed))).devices[0].fits
    assert not forecast(model, seen(gpu(0, needed - 1))).devices[0].fits


def by_size(gib: float, observed: ObservedState) -> MemoryForecast:
    return forecast_size(int(gib * 2**30), measure_rooms(observed))


def test_the_size_of_the_files_tells_about_where_a_model_fits() -> None:
    filled = seen(gpu(0, 24_000, 20_000), gpu(1, 8_000), replicas=(qwen({"GPU-0": 20_000, HOST: 50_000}),))
    small, middle, large = (by_size(gib, filled) for gib in (2, 8, 40))
    assert small.summary == "about 3277 MiB; fits on GPU 0 beside qwen, or on GPU 1"
    assert (small.devices[0].needed_mib, small.devices[0].free_mib, small.devices[0].total_mib) == (3277, 4000, 24_000)
    assert middle.summary == "about 10036 MiB; fits on GPU 0 once qwen is gone, and now in main memory beside qwen"
    assert [(each.gpus, each.fits, each.fits_alone) for each in middle.devices] == [
        (["0"], False, True),
        (["1"], False, False),
        ([], True, True),
    ]
    assert large.summary == "about 46080 MiB; fits in main memory once qwen is gone"
    assert by_size(70, filled).summary == "about 79872 MiB; does not fit: 4000 of 24000 MiB are free"


def test_by_its_size_a_model_fits_on_two_gpus_and_never_on_two_parts_of_one() -> None:
    two = by_size(30, seen(gpu(0, 24_000), gpu(1, 24_000), gpu(2, 8_000)))
    assert two.summary == "about 34816 MiB; fits on GPUs 0, 1 together"
    assert (two.devices[3].needed_mib, two.devices[3].gpus) == (17_408, ["0", "1"])
    parts = (replace(gpu(0, 24_000), uuid=f"MIG-{number}", mig=number) for number in (0, 1))
    assert by_size(30, seen(*parts)).summary == "about 34816 MiB; fits in main memory; no GPU has room for it"


def test_by_its_size_a_model_without_gpus_unread_ones_and_an_unknown_host() -> None:
    assert by_size(1, seen()).summary == "about 2151 MiB; fits in main memory"
    rooms = measure_rooms(seen(gpus=None))
    assert forecast_size(5, rooms, "the GPUs cannot be read now").summary.endswith("; the GPUs cannot be read now")
    unknown = forecast_size(5, [])
    assert unknown.devices == []
    assert unknown.summary == ("what it takes is not known: the controller has not made its first observation yet")


def fit(*gpus: str, fits: bool = True, alone: bool = True, beside: tuple[str, ...] = ()) -> DeviceFit:
    known: dict[str, Any] = {"gpus": gpus, "fits": fits, "fits_alone": alone, "beside": beside, "needed_mib": 1}
    return DeviceFit.model_validate(known | {"reason": None if fits else "needs 1 MiB"})


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
def test_a_forecast_is_summed_up_in_words(fits: list[DeviceFit], words: str) -> None:
    assert summarize_fits(fits) == words
