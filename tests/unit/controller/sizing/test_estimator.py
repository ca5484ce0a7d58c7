"""Estimates of memory: predicted by the heads of model files, or by their sizes."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contract.desired import Definition
from controller import memory_estimator
from controller.artifacts.heads import Artifact
from controller.artifacts.model_roots import ModelRoots
from controller.artifacts.read import read_artifact
from controller.engines import get_engine
from controller.engines.exllamav3 import ExLlamaV3Definition
from controller.engines.llama_cpp import LlamaCppDefinition
from controller.engines.llama_server import LlamaServerDefinition
from controller.engines.stub import StubDefinition
from controller.engines.vllm import VllmDefinition
from controller.hosts import Gpu
from controller.memory_estimator import FRESH_S, KEPT_S, Estimate, Estimator, estimate_replicas, largest_mib
from controller.state import DesiredModel, Requirement, Statement
from tests.support.clockwork_folders import make_hf
from tests.support.gguf_files import gguf_head, write_llama
from worker.clockwork import make_model


def model(name: str, definition: Definition, **fields: Any) -> DesiredModel:
    return DesiredModel(name, definition, get_engine(definition).name, "h", 1, Statement("file", 0.0, ""), **fields)


def gguf(name: str, path: str, **fields: Any) -> DesiredModel:
    definition = LlamaServerDefinition.model_validate({"model_path": path, **fields})
    return model(name, definition, gpu_count=definition.gpu_count or 0)


def file(path: Path, mib: int) -> None:
    """A GGUF file of an architecture that nobody knows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gguf_head({"general.architecture": "strange"}))
    with path.open("r+b") as opened:
        opened.truncate(mib * 2**20)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    paths: list[str] = []

    def counted(path: str, files: list[Path]) -> Artifact:
        paths.append(path)
        return read_artifact(path, files)

    monkeypatch.setattr(memory_estimator, "read_artifact", counted)
    return paths


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def predictions(tmp_path: Path, clock: Clock) -> Estimator:
    return Estimator(ModelRoots((tmp_path,)), clock)


SIZED = Estimate(0, 10, "model_artifact_size")
TWO_GPUS = Estimate(1000, 50, "predicted", gpus=2)
SHARING = Estimate(1000, 50, "predicted", gpus=2, gpu_share=0.5)


@pytest.mark.parametrize(
    ("found", "known", "expected"),
    [
        (SIZED, {}, (30, "model_artifact_size")),
        (None, {}, (None, "unavailable")),
        (TWO_GPUS, {}, (6000, "predicted")),
        (SHARING, {"gpu_mib": 8001}, (24006, "predicted")),
        (SHARING, {"gpu_mib": 100}, (6000, "predicted")),
        (SHARING, {}, (None, "unavailable")),
        (SIZED, {"observed_mib": 12}, (36, "observed_load_delta")),
        (None, {"observed_mib": 12}, (36, "observed_load_delta")),
        (SIZED, {"observed_mib": 12, "declared_mib": 20}, (60, "declared")),
    ],
)
def test_an_estimate_is_for_all_replicas(found: Estimate | None, known: dict[str, int], expected: Any) -> None:
    mib, source = expected
    assert estimate_replicas(found, 3, **known) == (mib, 3, source)


async def test_a_file_that_says_enough_is_predicted_by(tmp_path: Path, predictions: Estimator) -> None:
    # One layer with one KV head of 64: 256 bytes a token at f16. 4096 cells: 1 MiB.
    write_llama(tmp_path / "a.gguf", layers=1, width=256, heads=4, kv_heads=1, vocabulary=1024)
    wants = [gguf("short", "a.gguf", llama_server_n_ctx=4096), gguf("long", "a.gguf", llama_server_n_ctx=4096 * 65)]
    found = await predictions.estimate_models(wants)
    assert {each.source for each in found.values()} == {"predicted"}
    assert {each.per_gpu_mib for each in found.values()} == {0}
    # 64 MiB more of cache, and 512 rows of a mask that is 2 bytes x 262,144 wider.
    assert found["long"].host_mib - found["short"].host_mib == 64 + 256


async def test_a_model_s_files_count_together_where_only_sizes_are_known(
    tmp_path: Path, predictions: Estimator
) -> None:
    file(tmp_path / "a.gguf", 3)
    file(tmp_path / "draft.gguf", 2)
    file(tmp_path / "split-00001-of-00002.gguf", 4)
    file(tmp_path / "split-00002-of-00002.gguf", 5)
    paths = {"one": "a.gguf", "split": "split-00001-of-00002.gguf", "gone": "gone.gguf", "outside": "../other.gguf"}
    wants = [
        *(gguf(name, path) for name, path in paths.items()),
        gguf("odd", "a\0.gguf"),
        gguf("two", "a.gguf", llama_server_draft_model_path="draft.gguf"),
        gguf("half", "a.gguf", llama_server_draft_model_path="gone.gguf"),
        gguf("gpus", "a.gguf", gpus=2),
        model("stub", StubDefinition(backend="stub")),
    ]
    found = await predictions.estimate_models(wants)
    sizes = {name: (each.per_gpu_mib, each.host_mib) for name, each in found.items()}
    assert sizes == {"one": (0, 3), "two": (0, 5), "split": (0, 9), "gpus": (2, 0)}
    assert {each.source for each in found.values()} == {"model_artifact_size"}
    assert "'strange'" in str(found["one"].reason)


async def test_an_estimate_follows_an_edit(tmp_path: Path, predictions: Estimator) -> None:
    write_llama(tmp_path / "a.gguf", layers=1, width=256, heads=4, kv_heads=1, vocabulary=1024)
    told = []
    for want in (
        gguf("m", "a.gguf", llama_server_n_ctx=4096),
        gguf("m", "a.gguf", llama_server_n_ctx=8192),
        gguf("m", "a.gguf", llama_server_n_ctx=8192, gpus=1),
    ):
        await predictions.refresh_artifacts([want])
        assert predictions.known_estimates([want]) == predictions.known_estimates([want])
        told.append(predictions.known_estimates([want])["m"])
    assert told[0].host_mib < told[1].host_mib
    assert (told[1].gpus, told[2].gpus) == (0, 1)
    resized = replace(want, gpu_count=2)
    assert predictions.known_estimates([resized])["m"].gpus == 2


async def test_what_is_set_aside_is_never_by_size_alone(tmp_path: Path, predictions: Estimator) -> None:
    file(tmp_path / "strange.gguf", 3)
    write_llama(tmp_path / "a.gguf", layers=1, width=256, heads=4, kv_heads=1, vocabulary=1024)
    wants = [gguf("a", "a.gguf", gpus=1), gguf("host", "a.gguf"), gguf("strange", "strange.gguf", gpus=1)]
    assert predictions.predict_requirements(wants) == {}, "nothing was read yet, and nobody waits for it"
    assert await predictions.refresh_artifacts(wants)
    found = predictions.known_estimates(wants)
    assert predictions.predict_requirements(wants) == {
        "a": Requirement(found["a"].per_gpu_mib, found["a"].host_mib),
        "host": Requirement(None, found["host"].host_mib),
    }
    assert found["a"].per_gpu_mib > 500, "a CUDA context"


def test_the_largest_gpu_that_a_model_may_use_counts() -> None:
    gpus = [Gpu("A", 0, "small", 8000), Gpu("B", 1, "large", 24000)]
    want = gguf("m", "a.gguf", gpus=1)
    assert largest_mib(want, gpus) == 24000
    assert largest_mib(model("m", want.definition, gpu_count=1, gpu_choice=("A",)), gpus) == 8000
    assert largest_mib(model("m", want.definition, gpu_count=1, gpu_choice=("1",)), gpus) == 24000
    assert largest_mib(want, None) is None


async def test_a_head_is_read_once_and_again_when_its_file_changed(
    tmp_path: Path, reads: list[str], predictions: Estimator, clock: Clock
) -> None:
    file(tmp_path / "a.gguf", 3)
    models = [gguf("one", "a.gguf"), gguf("two", "a.gguf")]
    for found in await asyncio.gather(*(predictions.estimate_models(models) for _ in range(5))):
        assert {name: each.host_mib for name, each in found.items()} == {"one": 3, "two": 3}
    assert reads == ["a.gguf"]
    clock.now += FRESH_S
    assert not await predictions.refresh_artifacts(models)
    assert reads == ["a.gguf"], "as before by size and time of change"
    file(tmp_path / "a.gguf", 4)
    clock.now += FRESH_S - 1
    assert not await predictions.refresh_artifacts(models)
    clock.now += 1
    assert await predictions.refresh_artifacts(models)
    assert predictions.known_estimates(models)["one"].host_mib == 4
    os.utime(tmp_path / "a.gguf", ns=(1, 1))
    clock.now -= 3600
    assert not await predictions.refresh_artifacts(models), "read again, and the same"
    assert len(reads) == 3, "a clock that was set back does not make an old look fresh"
    (tmp_path / "a.gguf").unlink()
    clock.now += FRESH_S
    assert await predictions.refresh_artifacts(models)
    assert predictions.known_estimates(models) == {}


async def test_what_a_token_stands_for_is_known_once_the_file_was_looked_at(
    tmp_path: Path, predictions: Estimator
) -> None:
    make_model(tmp_path / "m.gguf")
    make_hf(tmp_path / "hf")
    kept = [
        gguf("server", "m.gguf"),
        model("llama", LlamaCppDefinition(backend="llama_cpp", model_path="m.gguf")),
        model("vllm", VllmDefinition(backend="vllm", model_path="hf")),
        model("exl", ExLlamaV3Definition(backend="exllamav3", model_path="hf")),
    ]
    others = [
        gguf("shifts", "m.gguf", extra_args=["--context-shift"]),
        gguf("overrides", "m.gguf", extra_args=["--override-kv", "tokenizer.ggml.model=str:bert"]),
        gguf("shifts-too", "m.gguf", env={"LLAMA_ARG_CONTEXT_SHIFT": "1"}),
        model("vllm-other", VllmDefinition(backend="vllm", model_path="hf", extra_args=["--tokenizer=/other"])),
        model("hub", VllmDefinition(backend="vllm", vllm_model="org/model")),
        model("stub", StubDefinition(backend="stub")),
    ]
    assert predictions.longest_tokens([*kept, *others]) == {}
    await predictions.refresh_artifacts([*kept, *others])
    assert predictions.longest_tokens([*kept, *others]) == {each.name: len("<|endoftext|>") for each in kept}


async def test_files_that_no_model_names_are_forgotten(tmp_path: Path, predictions: Estimator, clock: Clock) -> None:
    file(tmp_path / "a.gguf", 3)
    file(tmp_path / "b.gguf", 3)
    await predictions.refresh_artifacts([gguf("one", "a.gguf")])
    clock.now += KEPT_S
    await predictions.refresh_artifacts([gguf("two", "b.gguf")])
    assert predictions.known_estimates([gguf("one", "a.gguf")]) == {}


async def test_who_stops_waiting_takes_the_result_from_nobody(
    tmp_path: Path, reads: list[str], predictions: Estimator
) -> None:
    file(tmp_path / "a.gguf", 3)
    wants = [gguf("one", "a.gguf")]
    first, second = (asyncio.create_task(predictions.estimate_models(wants)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second)["one"].host_mib == 3
    assert reads == ["a.gguf"]
    with pytest.raises(asyncio.CancelledError):
        await first


def exllama(root: Path, name: str, *, width: str = "64", ends: str = "2") -> DesiredModel:
    """A model whose config.json says so of its hidden size, and whose tensor ends there."""
    folder = root / name
    folder.mkdir()
    config = '"num_hidden_layers":2,"num_attention_heads":4,"max_position_embeddings":128,"vocab_size":100'
    (folder / "config.json").write_text(f'{{{config},"hidden_size":{width}}}')
    head = b'{"a":{"dtype":"F16","shape":[1],"data_offsets":[0,%b]}}' % ends.encode()
    (folder / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + b"00")
    definition = ExLlamaV3Definition(backend="exllamav3", model_path=name, gpus=1)
    return model(name, definition, gpu_count=1)


async def test_absurd_numbers_in_one_model_s_files_cost_no_other_one_its_estimate(
    tmp_path: Path, predictions: Estimator, caplog: pytest.LogCaptureFixture
) -> None:
    wants = [exllama(tmp_path, "good"), exllama(tmp_path, "wide", width="1" + "0" * 400)]
    wants.append(exllama(tmp_path, "endless", ends="1e999"))
    for _ in range(3):
        found = await predictions.estimate_models(wants)
        assert predictions.predict_requirements(wants).keys() == {"good"}
    sources = {name: each.source for name, each in found.items()}
    assert sources == {"good": "predicted", "wide": "model_artifact_size", "endless": "model_artifact_size"}
    assert "OverflowError" in str(found["wide"].reason)
    assert "endless/model.safetensors has no type and offsets" in str(found["endless"].reason)
    assert len(caplog.records) == 1, "it is said once"


async def test_an_error_that_nobody_thought_of_costs_no_other_file_its_estimate(
    tmp_path: Path, predictions: Estimator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def read(path: str, files: list[Path]) -> Artifact:
        if path == "odd":
            raise OverflowError("of some number")
        return read_artifact(path, files)

    monkeypatch.setattr("controller.memory_estimator.read_artifact", read)
    wants = [exllama(tmp_path, "good"), exllama(tmp_path, "odd")]
    for _ in range(3):
        found = await predictions.estimate_models(wants)
        assert predictions.predict_requirements(wants).keys() == {"good"}
    assert "odd cannot be read: OverflowError: of some number" in str(found["odd"].reason)
    assert len(caplog.records) == 1, "it is said once"
