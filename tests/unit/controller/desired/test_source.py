"""The desired state that files, overrides and demand make, over restarts and broken disks; keys and tools with it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from contract.override import Override
from contract.routing import GatewayReport
from controller.artifacts.model_roots import ModelRoots
from controller.config.validate import PlacedSource
from controller.desired.file_source import DesiredOptions
from controller.desired.resolve import Defaults
from controller.desired.source import STORED_FIELD_WORDS, DesiredCallbacks, DesiredStateSource
from controller.routing_table import build_keys
from controller.state import AttemptNumbers, DesiredModel, DesiredState
from controller.state_dir import StateDir, StoredState
from tests.support.small_disk import no_space
from tests.support.wait import until

MODELS = "models:\n  m:\n    backend: stub\n"
EAGER, LAZY = (f"{MODELS}    enabled: {enabled}\n    autoload: true\n" for enabled in ("true", "false"))
A, B = "a" * 64, "b" * 64
KEYS = f"keys:\n  ci:\n    sha256: {A}\n"


class Place:
    """A folder of files, a state folder, a clock, and what was reported of edits."""

    def __init__(self, root: Path) -> None:
        self.desired = root / "desired"
        self.desired.mkdir()
        self.now = 1_000.0
        self.store = StateDir.open_folder(root / "state")
        self.edits: list[tuple[list[str], dict[str, Sequence[str]]]] = []
        """Keys after each edit, and what it ended."""

    def files(self, **callbacks: Any) -> DesiredStateSource:
        """As a controller that starts makes them."""
        files = DesiredStateSource(
            DesiredOptions(self.desired, ModelRoots((self.desired,)), Defaults(), 10.0), self.store, lambda: self.now,
            DesiredCallbacks(
                on_edit=lambda _, after, ends, _actor: self.edits.append((sorted(after.keys), dict(ends))), **callbacks
            ),
        )  # fmt: skip
        files.recover_last_good()
        return files

    def write(self, text: str) -> None:
        (self.desired / "models.yaml").write_text(text)

    async def edit(self, files: DesiredStateSource, text: str) -> None:
        self.write(text)
        await files.read_files()

    async def start(self, text: str | None = None, **callbacks: Any) -> DesiredStateSource:
        """A controller, which has read the files."""
        if text is not None:
            self.write(text)
        files = self.files(**callbacks)
        await files.read_files()
        return files

    def report(self, at: float) -> GatewayReport:
        """A gateway's report that a request asked for the model."""
        return GatewayReport(gateway_id="g", stamp=None, demand={"m": at})


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.store.close()


def state_of(files: DesiredStateSource) -> DesiredState:
    state = files.desired_state()
    assert state is not None
    return state


def model_of(files: DesiredStateSource) -> DesiredModel:
    return state_of(files).models["m"]


def wanted(files: DesiredStateSource) -> dict[str, int]:
    return {name: model.replicas for name, model in state_of(files).models.items()}


def keys_of(files: DesiredStateSource) -> list[str]:
    return [key.name for key in build_keys(state_of(files).keys)]


def load(at: float, **statement: Any) -> Override:
    return Override.from_statement({"backend": "stub"}, model="m", action="load", at=at, **statement)


async def test_since_stands_still_after_a_restart(place: Place) -> None:
    assert place.files().desired_state() is None
    await place.start(EAGER)
    files = await place.start()
    first = state_of(files)
    place.now += 50
    await files.read_files()
    later = state_of(files)
    assert later.generation == first.generation > 0
    assert later.models["m"].statement == first.models["m"].statement


async def test_a_model_is_as_old_as_its_name_in_the_files(place: Place) -> None:
    files, began = await place.start(EAGER), place.now
    place.now += 50
    files.set_override(load(place.now))
    assert model_of(files).first_declared_at == began, "a load is no declaration"
    await place.edit(files, LAZY)
    assert model_of(files).first_declared_at == began, "nor is an edit"
    files = await place.start()
    assert model_of(files).first_declared_at == began, "nor is a restart"
    await place.edit(files, MODELS.replace("m:", "n:"))
    place.now += 50
    await files.read_files()
    assert "m" not in wanted(files)
    await place.edit(files, EAGER)
    assert model_of(files).first_declared_at == place.now, "one that was away is another one"


async def test_demand_loads_and_an_edit_of_enabled_ends_it(place: Place) -> None:
    files = await place.start(f"{LAZY}    replicas: 2\n")
    assert wanted(files) == {"m": 0}
    assert [files.demand.take_demand(place.report(place.now)) for _ in range(2)] == [True, False]
    assert wanted(files) == {"m": 2}
    assert wanted(place.files()) == {"m": 2}, "demand outlives a restart"
    await place.edit(files, f"{LAZY}    replicas: 1\n")
    assert wanted(files) == {"m": 0}


async def test_a_model_that_rests_stays_so_over_a_restart_until_it_is_requested(place: Place) -> None:
    files = await place.start(f"{EAGER}    replicas: 2\n")
    before = files.revision
    files.evict_models({"m": "makes room for n"})
    assert files.revision > before
    again = await place.start()
    for each in (files, again):
        model = model_of(each)
        assert (model.replicas, model.demand_replicas, model.drain_ends) == (0, 2, False)
        assert model.statement.reason == "makes room for n; the next request loads it"
    old = place.report(place.now - 100)
    assert not again.demand.take_demand(old), "a gateway reports the last request, before the rest, again and again"
    assert wanted(again) == {"m": 0}
    place.now += 1
    assert again.demand.take_demand(place.report(place.now))
    assert wanted(again) == {"m": 2}
    again.evict_models({"m": "not used for 5 s"})
    again.request_reload(["m"])
    assert wanted(again) == {"m": 2}


async def test_a_clock_that_was_set_back_hides_no_request(place: Place) -> None:
    files = await place.start(EAGER)
    files.evict_models({"m": "makes room for n"})
    place.now -= 3600
    # Of a gateway that had nothing to report before, and of one that had.
    for seconds in (0, -3600):
        assert files.demand.take_demand(place.report(place.now + seconds))
        assert wanted(files) == {"m": 1}
        files.evict_models({"m": "makes room for n"})


@pytest.mark.parametrize(
    ("edit", "replicas"), [("    autoload: true\n    replicas: 2\n", 2), ("    autoload: false\n", 1)]
)
async def test_an_edit_that_says_what_is_to_run_ends_a_rest_and_another_one_does_not(
    place: Place, edit: str, replicas: int
) -> None:
    files = await place.start(EAGER)
    files.evict_models({"m": "makes room for n"})
    await place.edit(files, f"{EAGER}    stub_text: other\n")
    assert wanted(files) == {"m": 0}
    await place.edit(files, f"{MODELS}    enabled: true\n{edit}")
    assert wanted(files) == {"m": replicas}


async def test_a_statement_of_an_operator_ends_a_rest(place: Place) -> None:
    files = await place.start(LAZY)
    files.evict_models({"m": "makes room for n"})
    declared = {"backend": "stub", "autoload": True, "enabled": False}
    files.set_override(Override.from_statement(declared, model="m", action="load", at=place.now))
    assert wanted(files) == {"m": 1}
    assert files.drop_override("m")
    assert model_of(files).statement.reason == "autoload: no request asked for it yet"


async def test_a_statement_that_an_edit_ended_stays_ended_when_the_edit_is_taken_back(place: Place) -> None:
    await place.start(MODELS)
    unload = Override.from_statement({"backend": "stub"}, model="m", action="unload", at=1.0)
    place.store.save_memory(StoredState(overrides={"m": unload}))
    files = await place.start()
    assert wanted(files) == {"m": 0}
    await place.edit(files, f"{MODELS}    replicas: 2\n")
    assert wanted(files) == {"m": 2}
    await place.edit(files, MODELS)
    assert wanted(files) == {"m": 1}


async def test_a_model_that_vanishes_is_gone_after_two_reads_two_seconds_apart(place: Place) -> None:
    files = await place.start(f"{MODELS}  n: {{backend: stub}}\n")
    await place.edit(files, MODELS)
    assert set(wanted(files)) == {"m", "n"}
    assert files.wake_at() == place.now + 2
    place.now += 2
    await files.refresh_files(place.now)
    assert set(wanted(files)) == {"m"}


async def test_after_the_clock_was_set_back_the_files_are_read_and_a_removal_is_confirmed(place: Place) -> None:
    place.now = 10_000.0
    files = await place.start(f"{MODELS}  n: {{backend: stub}}\n")
    place.now -= 3600
    place.write(MODELS)
    await files.refresh_files(place.now)
    assert files.wake_at() == place.now + 2, "they were read"
    place.now -= 3600
    for seconds in (0, 2):
        assert set(wanted(files)) == {"m", "n"}
        place.now += seconds
        await files.refresh_files(place.now)
    assert set(wanted(files)) == {"m"}


def full(_memory: StoredState) -> None:
    raise OSError(28, "No space left on device")


async def test_a_disk_that_is_full_costs_memory_and_not_the_pause(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files, attempts = await place.start(EAGER), AttemptNumbers(highest={"m/0/1234": 1})
    with monkeypatch.context() as broken:
        broken.setattr(place.store, "save_memory", full)
        files.set_paused(True)
        files.remember_loaded(frozenset({"m"}), {}, {})
        files.remember_attempts(attempts)
    assert state_of(files).paused
    assert caplog.text.count("not stored") == 1
    unsaved = ["whether it is paused", "which models were loaded before", "which names replicas had"]
    assert files.list_unsaved() == unsaved
    assert STORED_FIELD_WORDS.keys() == StoredState.model_fields.keys() - {"schema_version"}
    assert not place.store.load_memory().paused
    files.remember_loaded(frozenset(), {}, {})
    assert place.store.load_memory().paused, "the next write brings it along"
    assert place.store.load_memory().attempts == attempts
    assert files.list_unsaved() == []


async def test_the_use_of_keys_is_stored_once_a_minute(place: Place) -> None:
    files = await place.start(EAGER)

    def store(used: dict[str, float], now: float) -> Mapping[str, float]:
        place.now = now
        files.remember_keys_used(used)
        return place.store.load_memory().keys_used

    assert store({"a": 960.0}, 1000.0) == {"a": 960.0}
    assert store({"a": 1020.0}, 1030.0) == {"a": 960.0}
    assert store({"a": 1020.0}, 1061.0) == {"a": 1020.0}
    assert store({}, 500.0) == {}, "the clock was set back"


async def test_a_last_good_state_that_could_not_be_stored_is_tried_again(place: Place) -> None:
    place.write(EAGER)
    files = place.files()
    with no_space():
        await files.read_files()
        assert files.list_unsaved() == ["when models were declared", "what the files last said"]
    await files.read_files()
    files.remember_loaded(frozenset(), {}, {})  # as each round does
    assert files.list_unsaved() == []
    assert place.files().in_force is not None


async def test_what_no_longer_fits_ends_and_stays_ended_when_the_edit_is_taken_back(place: Place) -> None:
    llama, stub = (f"models:\n  m:\n    model_path: a.gguf\n    backend: {name}\n" for name in ("llama_server", "stub"))
    files = await place.start(llama)
    assert files.in_force is not None
    params = {"llama_server_n_ctx": 512, "llama_server_threads": 2, "target_inflight": 3}
    declared = files.in_force.declared_models["m"]
    files.set_override(Override.from_statement(declared, model="m", action="load", at=1.0, params=params))
    await place.edit(files, stub)
    assert place.edits[-1][1] == {"m": ["llama_server_n_ctx", "llama_server_threads"]}
    await place.edit(files, llama)
    assert model_of(files).params == {"target_inflight": 3}
    await place.edit(files, f"{llama}    enabled: false\n")
    assert place.edits[-1][1] == {"m": ["load"]}


async def test_secrets_of_files_and_of_loads_are_learned_before_anything_is_said_of_them(place: Place) -> None:
    learned: list[str] = []

    def learn(declared: object) -> None:
        learned.append(str(declared))

    files = await place.start(f"{MODELS}    env: {{TOKEN: a-secret}}\n", learn=learn)
    assert "a-secret" in learned[-1]
    files.set_override(Override(model="m", action="load", at=1.0, params={"stub_text": "b-secret"}))
    assert "b-secret" in learned[-1]
    learned.clear()
    place.files(learn=learn)
    assert "a-secret" in str(learned)
    assert "b-secret" in str(learned)


async def test_a_problem_is_logged_without_secrets(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    await place.start("models:\n  m:\n    backend: openai_remote\n    base_url: http://u:pa55word@h?x\n")
    assert "***@h" in caplog.text
    assert "pa55word" not in caplog.text


# Keys and tools


async def test_an_edit_of_keys_is_wanted_at_once_and_touches_no_model(place: Place) -> None:
    files = await place.start(MODELS + KEYS)
    before = state_of(files)
    files.set_override(load(1.0))
    loaded = state_of(files)
    place.now += 50
    await place.edit(files, f"{MODELS}{KEYS}  web:\n    sha256: {B}\n")
    after = state_of(files)
    assert (keys_of(files), after.models) == (["ci", "web"], loaded.models)
    assert after.revision > loaded.revision
    assert after.generation > before.generation
    assert place.edits == [(["ci"], {}), (["ci", "web"], {})]


async def test_broken_files_change_nothing_also_over_a_restart(place: Place) -> None:
    await place.start(MODELS + KEYS)
    for broken in ("models: [", "models: {m: {backend: nope}}\n", f"{MODELS}keys: {{ci: {{sha256: rh-x}}}}\n"):
        place.write(broken)
        files = place.files()
        assert (wanted(files), keys_of(files)) == ({"m": 1}, ["ci"]), "before the files are read"
        await files.read_files()
        place.now += 100
        await files.read_files()
        assert files.file_source.problems
        assert (wanted(files), keys_of(files)) == ({"m": 1}, ["ci"])


async def test_the_last_key_is_gone_when_two_reads_agree_and_stays_gone(place: Place) -> None:
    files = await place.start(MODELS + KEYS)
    await place.edit(files, MODELS)
    assert (keys_of(files), files.wake_at()) == (["ci"], place.now + 2)
    place.now += 2
    await files.refresh_files(place.now)
    assert (keys_of(files), keys_of(place.files())) == ([], [])


async def test_tools_are_wanted_at_once_and_their_secrets_are_learned(place: Place) -> None:
    tools = "tools: {calculate: {}}\nmcp_servers: {a: {url: https://a/, headers: {X: s3cr3t}}}\n"
    learned: dict[str, object] = {}
    files = await place.start(MODELS + tools, learn=learned.update)
    state = state_of(files)
    assert (list(state.tools), list(state.mcp_servers)) == (["calculate"], ["a"])
    assert learned["mcp:a"] == {"url": "https://a/", "headers": {"X": "s3cr3t"}}
    await place.edit(files, MODELS)
    after = state_of(files)
    assert (list(after.tools), list(after.mcp_servers), after.revision > state.revision) == ([], ["a"], True)
    assert files.wake_at() == place.now + 2
    assert list(state_of(place.files()).mcp_servers) == ["a"], "also over a restart"


async def test_a_slow_look_for_sources_does_not_undo_a_newer_one(place: Place) -> None:
    found: dict[str, PlacedSource] = {}
    begun, may_end = threading.Event(), threading.Event()
    waits_for: list[threading.Event] = []

    def find_sources(_: frozenset[str]) -> dict[str, PlacedSource]:
        seen = dict(found)
        if waits_for:
            gate = waits_for.pop()
            begun.set()
            assert gate.wait(10)
        return seen

    files = await place.start(MODELS, find_sources=find_sources)
    waits_for.append(may_end)
    slow = asyncio.create_task(files.refresh_sources())
    await until("it has looked", begun.is_set)
    found["hf:a/b"] = here = PlacedSource("b")
    await files.refresh_sources()
    may_end.set()
    await slow
    assert files.sources == {"hf:a/b": here}
