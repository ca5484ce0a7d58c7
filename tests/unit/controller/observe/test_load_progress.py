"""How far loads are: what engines write of it, and what becomes of that."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller.engines import ENGINES
from controller.engines.stub import StubDefinition
from controller.engines.vllm import vllm_progress
from controller.model_status import is_starting, model_progress
from controller.observe.prober import LoadProgress
from controller.runtimes.base import RuntimeUnavailableError
from controller.state import DesiredModel, Health, ObservedReplica, Phase, ReplicaId, Statement
from tests.support.wait import until

STUB = ENGINES["stub"]


@pytest.mark.parametrize("backend", ["llama_cpp", "llama_server"])
@pytest.mark.parametrize(
    ("log", "progress"),
    [
        ("", None),
        ("load_tensors: loading model tensors, this can take a while...", None),
        ("load_tensors:   CPU_Mapped model buffer size =   361.35 MiB\n.....", 0.05),
        ("\n" + "." * 57, 0.57),
        ("." * 57 + "\nllama_context: constructing llama_context", 1.0),
        ("." * 300, 1.0),
        ("...\nload_tensors: the draft\n..", 0.02),
    ],
)
def test_llama_cpp_writes_dots(backend: str, log: str, progress: float | None) -> None:
    assert ENGINES[backend].parse_progress(log) == progress


@pytest.mark.parametrize(
    ("log", "progress"),
    [
        ("INFO Starting to load model", None),
        ("Loading safetensors checkpoint shards:   0% Completed | 0/4 [00:00<?, ?it/s]", 0.0),
        (
            "(EngineCore_0 pid=9) Loading safetensors checkpoint shards:  25% Completed | 1/4 [00:01<00:03]\n"
            "(EngineCore_0 pid=9) Loading safetensors checkpoint shards:  50% Completed | 2/4 [00:01<00:01]\nx 99%",
            0.5,
        ),
        ("Loading pt checkpoint shards: 100% Completed | 1/1\nCapturing CUDA graphs:  10%|", 1.0),
        ("Multi-thread loading shards: 75% Completed | 3/4", 0.75),
    ],
)
def test_vllm_writes_shards(log: str, progress: float | None) -> None:
    assert vllm_progress(log) == progress


def test_the_stub_writes_percents() -> None:
    assert STUB.parse_progress("loading: 10 %\nloading: 40 %\nother") == 0.4
    assert STUB.parse_progress("other loading: 10 %") is None


def model(replicas: int) -> DesiredModel:
    return DesiredModel("m", StubDefinition(backend="stub"), "stub", "new", replicas, Statement("file", 0.0, ""))


def replica(index: int, health: Health = Health.STARTING, spec: str = "new", **fields: Any) -> ObservedReplica:
    ready = None if health is Health.STARTING else 1.0
    values: dict[str, Any] = {"health": health, "ready_since": ready}
    phase = fields.pop("phase", Phase.RUNNING)
    return ObservedReplica(ReplicaId("m", index, spec), f"rh-{spec}-{index}", phase, 0.0, **(values | fields))


def test_a_model_s_progress_is_the_mean_over_what_is_wanted() -> None:
    half = {"rh-new-0": 0.5, "rh-old-1": 0.9}
    assert model_progress(model(2), [replica(0)], half) == 0.25
    assert model_progress(model(2), [replica(0), replica(1, Health.READY)], half) == 0.75
    assert model_progress(model(2), [replica(0), replica(1, spec="old")], half) == 0.25
    assert model_progress(model(1), [replica(0), replica(1, Health.READY)], half) == 0.5
    assert model_progress(model(2), [replica(0, Health.READY), replica(1, Health.READY)], {}) == 1.0
    assert model_progress(model(2), [replica(1)], half) is None
    assert model_progress(model(0), [replica(0)], half) is None


def test_which_replicas_are_starting() -> None:
    assert is_starting(model(1), replica(0))
    assert not is_starting(model(1), replica(1))
    assert not is_starting(model(1), replica(0, Health.READY))
    assert not is_starting(model(1), replica(0, spec="old"))
    assert not is_starting(model(1), replica(0, phase=Phase.EXITED))


class Logs:
    """Tails that a test sets."""

    def __init__(self) -> None:
        self.tails: dict[str, str | Exception] = {}
        self.read = 0

    async def read_log_tail(self, name: str, lines: int = 50) -> str:
        self.read += 1
        tail = self.tails.get(name, "")
        if isinstance(tail, Exception):
            raise tail
        return tail


async def test_progress_is_told_in_steps_and_never_falls() -> None:
    logs, wakes = Logs(), asyncio.Event()
    progress = LoadProgress(logs, wake=wakes.set, interval_s=0.001)
    logs.tails = {"a": "loading: 44 %", "b": RuntimeUnavailableError("it hangs"), "c": RuntimeError("a bug")}
    progress.track_engines(dict.fromkeys(logs.tails, STUB))
    await until("it is known", lambda: progress.fractions == {"a": 0.4})
    await wakes.wait()
    wakes.clear()

    logs.tails["a"] = "loading: 10 %"
    read = logs.read
    await until("it was read again", lambda: logs.read > read + 6)
    assert (progress.fractions, wakes.is_set()) == ({"a": 0.4}, False)

    logs.tails |= {"a": "loading: 100 %", "b": "loading: 15 %"}
    await until("it is known", lambda: progress.fractions == {"a": 1.0, "b": 0.15})
    assert wakes.is_set()
    await progress.close()


async def test_what_is_no_longer_starting_is_forgotten_and_not_read() -> None:
    logs = Logs()
    progress = LoadProgress(logs, wake=lambda: None, interval_s=0.001)
    logs.tails = {"a": "loading: 50 %"}
    progress.track_engines({"a": STUB})
    await until("it is known", lambda: bool(progress.fractions))
    progress.track_engines({})
    assert progress.fractions == {}
    read = -1

    def settled() -> bool:
        nonlocal read
        before, read = read, logs.read
        return before == read

    await until("nothing is read any more", settled)
    progress.track_engines({"a": STUB})
    await until("it is known", lambda: progress.fractions == {"a": 0.5})
    await progress.close()
    await progress.close()
