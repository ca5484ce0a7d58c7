"""What replicas were seen to take, how that is remembered, and what it makes of their claims."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.engines.llama_server import LlamaServerDefinition
from controller.hosts import HOST, Gpu
from controller.memory_history import (
    FILE_NAME,
    KINDS_KEPT,
    LOADS_KEPT,
    MemoryHistory,
    ObservedSample,
    gpu_type_of,
    save_history,
)
from controller.state import DesiredModel, HeldMemory, Requirement, Statement, raise_claims
from tests.support.campaign import campaign_count

H200 = "NVIDIA H200"


def model(name: str = "m", *, replicas: int = 1, gpus: int = 1, **fields: Any) -> DesiredModel:
    definition = LlamaServerDefinition.model_validate({"model_path": "m.gguf", "gpus": gpus, **fields})
    statement = Statement("file", 0.0, "")
    return DesiredModel(name, definition, "llama_server", "h", replicas, statement, gpu_count=gpus)


def took(
    memory: MemoryHistory, want: DesiredModel, mib: int | None, *, replica: str = "r", host: int | None = None,
    gpu: str | None = H200, at: float = 5.0,
) -> None:  # fmt: skip
    memory.record_sample(want, replica, gpu, per_gpu_mib=mib, host_mib=host, at=at)


@pytest.fixture
def memory() -> MemoryHistory:
    return MemoryHistory()


def test_what_was_seen_is_known_again_after_a_restart(tmp_path: Path) -> None:
    memory = MemoryHistory.load_history(tmp_path)
    took(memory, model(), 4000, host=300, at=7.0)
    took(memory, model("small", gpus=0), None, gpu=None, host=90)
    save_history(tmp_path, memory.file_content())
    again = MemoryHistory.load_history(tmp_path)
    assert again.observed_requirement(model(), H200) == ObservedSample(4000, 300, 1, 7.0)
    assert again.observed_requirement(model("small", gpus=0), None) == ObservedSample(None, 90, 1, 5.0)
    assert again.last_sampled_at("r") == 7.0
    assert again.last_sampled_at("another") is None
    assert json.loads((tmp_path / FILE_NAME).read_bytes())["schema_version"] == 1
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600


def test_another_model_and_other_parameters_are_something_else(memory: MemoryHistory) -> None:
    took(memory, model(), 4000)
    differing: tuple[dict[str, Any], ...] = (
        {"name": "other"}, {"llama_server_n_ctx": 8192}, {"gpus": 2}, {"model_path": "n.gguf"}, {"target_inflight": 8}
    )  # fmt: skip
    for fields in differing:
        assert memory.observed_requirement(model(**fields), H200) is None, fields
    assert memory.observed_requirement(model(), "NVIDIA L4") is None
    assert memory.observed_requirement(model(), None) is None


def test_an_upgrade_of_roundhouse_and_what_does_not_matter_change_nothing(memory: MemoryHistory) -> None:
    took(memory, replace(model(), image="roundhouse/llama-server:1"), 4000)
    renamed = replace(model(aliases=["a"], vram_mib=9000), image="roundhouse/llama-server:2", spec_hash="h2")
    assert memory.observed_requirement(renamed, H200) == ObservedSample(4000, None, 1, 5.0)


def test_another_number_of_replicas_comes_last_and_an_unloaded_model_goes_by_its_declared_one(
    memory: MemoryHistory,
) -> None:
    took(memory, model(replicas=1), 4000)
    took(memory, model(replicas=2), 5000)
    assert memory.observed_requirement(model(replicas=1), H200) == ObservedSample(4000, None, 1, 5.0)
    assert memory.observed_requirement(model(replicas=3), H200) == ObservedSample(5000, None, 2, 5.0)
    idle = replace(model(replicas=0), definition=model().definition.model_copy(update={"replicas": 1}))
    assert memory.observed_requirement(idle, H200) == ObservedSample(4000, None, 1, 5.0)


def test_of_several_looks_and_loads_the_most_counts_and_old_loads_are_forgotten(memory: MemoryHistory) -> None:
    took(memory, model(), 4000, host=100)
    took(memory, model(), 4600, host=90, at=9.0)
    took(memory, model(), 4500, at=10.0)
    assert memory.observed_requirement(model(), H200) == ObservedSample(4600, 100, 1, 10.0)
    for load in range(LOADS_KEPT - 1):
        took(memory, model(), 4100, replica=f"later-{load}", at=20.0)
    assert memory.observed_requirement(model(), H200) == ObservedSample(4600, 100, 1, 20.0)
    took(memory, model(), 4100, replica="last", at=30.0)
    assert memory.observed_requirement(model(), H200) == ObservedSample(4100, None, 1, 30.0)


GPUS = (Gpu("GPU-a", 0, H200, 9), Gpu("GPU-b", 1, "NVIDIA L4", 9), Gpu("GPU-c", 2, "NVIDIA A2", 9))


def test_of_the_gpus_that_it_may_use_the_costliest_counts(memory: MemoryHistory) -> None:
    took(memory, model(), 4000)
    took(memory, model(), 4400, gpu="NVIDIA L4")
    chosen = {"GPU-a": 4000, "1": 4400, "2": None}
    for choice, mib in chosen.items():
        found = memory.largest_observed(replace(model(), gpu_choice=(choice,)), GPUS)
        assert (found and found.per_gpu_mib) == mib
    assert memory.largest_observed(model(), GPUS) == ObservedSample(4400, None, 1, 5.0)
    assert memory.largest_observed(model(), None) is None
    assert memory.largest_observed(model(gpus=0), GPUS) is None


def test_a_replica_on_gpus_of_two_types_counts_where_it_may_use_both(memory: MemoryHistory) -> None:
    two = model(gpus=2)
    took(memory, two, 4000, gpu=gpu_type_of([H200, "NVIDIA A2", H200]))
    for choice, mib in {(): 4000, ("0", "2"): 4000, ("0", "1"): None}.items():
        found = memory.largest_observed(replace(two, gpu_choice=choice), GPUS)
        assert (found and found.per_gpu_mib) == mib
    assert gpu_type_of([]) is None


def test_what_is_to_be_set_aside_goes_by_what_was_seen(memory: MemoryHistory) -> None:
    took(memory, model(), 4000, host=70)
    took(memory, model("small", gpus=0), None, gpu=None, host=90)
    wanted = [model(), model("small", gpus=0), model("new"), model("elsewhere")]
    seen = Requirement(4000, 70, observed_per_gpu_mib=4000)
    assert memory.observed_requirements(wanted, GPUS[:1]) == {"m": seen, "small": Requirement(None, 90)}
    assert memory.observed_requirements(wanted, None) == {"small": Requirement(None, 90)}


def test_what_one_replica_held_is_known_by_its_name(memory: MemoryHistory) -> None:
    took(memory, model(), 4000, host=70, replica="a")
    took(memory, model(), 3000, host=90, replica="a")
    took(memory, model(), 9000, replica="b")
    assert memory.held_memory("a") == HeldMemory(4000, 90)
    assert memory.held_memory("b") == HeldMemory(9000, None)
    assert memory.held_memory("c") is None


def test_one_replica_takes_so_much_of_each_of_its_gpus() -> None:
    assert ObservedSample(4000, 300, 1, 0.0).of_replica(2) == 8000
    assert ObservedSample(None, 300, 1, 0.0).of_replica(2) is None
    assert ObservedSample(None, 300, 1, 0.0).of_replica(0) == 300


def test_what_is_kept_is_bounded_and_models_that_are_gone_are_forgotten(memory: MemoryHistory) -> None:
    took(memory, model("other"), 1)
    for context in range(KINDS_KEPT + 3):
        took(memory, model(llama_server_n_ctx=1024 + context), 4000 + context)
    known = [memory.observed_requirement(model(llama_server_n_ctx=1024 + each), H200) for each in range(KINDS_KEPT + 3)]
    assert known[:3] == [None] * 3
    assert None not in known[3:]
    before = memory.revision
    memory.keep_only(["m", "other"])
    assert memory.revision == before
    memory.keep_only(["other"])
    assert memory.revision > before
    assert memory.observed_requirement(model(llama_server_n_ctx=1030), H200) is None
    assert memory.observed_requirement(model("other"), H200) is not None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"kinds": []}',
        b'{"schema_version": "one"}',
        b'{"schema_version": 1, "kinds": [{}]}',
        b'{"schema_version": 1, "kinds": [{"model": "m", "digest": "d", "gpu": "cpu", "replicas": 1, "loads": []}]}',
        b"[" * 100_000,
        b'{"schema_version": 2, "kinds": 7}',
    ],
)
def test_a_file_that_cannot_be_used_is_begun_anew(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    memory = MemoryHistory.load_history(tmp_path)
    assert "observed anew" in caplog.text
    took(memory, model(), 4000)
    save_history(tmp_path, memory.file_content())
    assert MemoryHistory.load_history(tmp_path).observed_requirement(model(), H200) is not None


@given(content=st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
@settings(max_examples=campaign_count(40, 3_000))
def test_no_file_keeps_the_controller_from_starting(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("state")
    (folder / FILE_NAME).write_bytes(content)
    assert MemoryHistory.load_history(folder).observed_requirement(model(), H200) is None


LOOKS = st.tuples(st.sampled_from("abcdef"), st.none() | st.integers(0, 10_000), st.none() | st.integers(0, 10_000))


@given(looks=st.lists(LOOKS, min_size=1, max_size=30))
@settings(max_examples=campaign_count(40, 3_000))
def test_the_most_of_the_last_loads_is_known(looks: list[tuple[str, int | None, int | None]]) -> None:
    memory, loads = MemoryHistory(), dict[str, tuple[list[int], list[int]]]()
    for at, (replica, mib, host) in enumerate(looks):
        took(memory, model(), mib, replica=replica, host=host, at=float(at))
        seen = loads.pop(replica, ([], []))
        seen[0].extend([] if mib is None else [mib])
        seen[1].extend([] if host is None else [host])
        loads = dict([*loads.items(), (replica, seen)][-LOADS_KEPT:])
        most = [max((mib for load in loads.values() for mib in load[part]), default=None) for part in (0, 1)]
        assert memory.observed_requirement(model(), H200) == ObservedSample(most[0], most[1], 1, float(at))


TWO = {"GPU-a": 8000, "GPU-b": 8000, HOST: 500}


@pytest.mark.parametrize(
    ("held", "raised"),
    [
        (None, TWO),
        (HeldMemory(), TWO),
        (HeldMemory(7000, 400), TWO),
        (HeldMemory(9100, 400), {"GPU-a": 9100, "GPU-b": 9100, HOST: 500}),
        (HeldMemory(None, 700), {"GPU-a": 8000, "GPU-b": 8000, HOST: 700}),
    ],
)
def test_claims_are_never_less_than_what_is_held_and_never_lowered(
    held: HeldMemory | None, raised: dict[str, int]
) -> None:
    assert raise_claims(TWO, held) == raised


def test_main_memory_that_nobody_predicted_is_claimed_once_it_is_seen() -> None:
    assert raise_claims({}, HeldMemory(None, 300)) == {HOST: 300}
    assert raise_claims({"GPU-a": 100}, HeldMemory(50, None)) == {"GPU-a": 100}


def test_the_most_that_was_seen_counts() -> None:
    assert HeldMemory(5, None).largest_of(HeldMemory(3, 7)) == HeldMemory(5, 7)
    assert HeldMemory().largest_of(HeldMemory()) == HeldMemory()
