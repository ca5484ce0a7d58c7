"""The desired state that files, overrides and demand make, over restarts and broken disks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from controller.artifacts.model_roots import ModelRoots
from controller.desired.persistence import STORED_FIELD_WORDS
from controller.desired.resolve import Defaults
from controller.desired.source import DesiredStateSource
from controller.schema.attempts import AttemptNumbers
from controller.schema.override import Override
from controller.schema.routing import GatewayReport
from controller.storage.state_dir import StateDir, StoredState
from tests.support.small_disk import no_space

LAZY = "models:\n  m:\n    backend: stub\n    enabled: {enabled}\n    autoload: true\n"


class Place:
    """A folder of files, a state folder, and a clock."""

    def __init__(self, root: Path) -> None:
        self.desired = root / "desired"
        self.desired.mkdir()
        self.state = root / "state"
        self.now = 1_000.0
        self.store = StateDir.open_folder(self.state)

    def files(self) -> DesiredStateSource:
        """As a controller that starts makes them."""
        files = DesiredStateSource(
            self.desired, ModelRoots((self.desired,)), self.store, Defaults(), resync_s=10.0, clock=lambda: self.now
        )
        files.recover_last_good()
        return files

    def write(self, text: str) -> None:
        """One file."""
        (self.desired / "models.yaml").write_text(text)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.store.close()


def _wanted(files: DesiredStateSource) -> dict[str, int]:
    state = files.desired_state()
    assert state is not None
    return {name: model.replicas for name, model in state.models.items()}


async def test_the_last_good_state_rules_a_restart_over_broken_files(place: Place) -> None:
    assert place.files().desired_state() is None
    place.write(LAZY.format(enabled="true"))
    files = place.files()
    await files.read_files()
    place.write("models: [")
    again = place.files()
    await again.read_files()
    assert _wanted(again) == {"m": 1}
    assert again.list_problems()


async def test_since_stands_still_after_a_restart(place: Place) -> None:
    place.write(LAZY.format(enabled="true"))
    await place.files().read_files()
    files = place.files()
    await files.read_files()
    first = files.desired_state()
    place.now += 50
    await files.read_files()
    later = files.desired_state()
    assert first is not None
    assert later is not None
    assert later.generation == first.generation > 0
    assert later.models["m"].statement == first.models["m"].statement


async def test_a_model_is_as_old_as_its_name_in_the_files(place: Place) -> None:
    def declared_at() -> float:
        state = files.desired_state()
        assert state is not None
        return state.models["m"].first_declared_at

    place.write(LAZY.format(enabled="true"))
    files = place.files()
    await files.read_files()
    began = place.now
    place.now += 50
    files.set_override(Override.from_statement({"backend": "stub"}, model="m", action="load", at=place.now))
    assert declared_at() == began, "a load is no declaration"
    place.write(LAZY.format(enabled="false"))
    await files.read_files()
    assert declared_at() == began, "nor is an edit"
    files = place.files()
    await files.read_files()
    assert declared_at() == began, "nor is a restart"
    place.write("models:\n  n:\n    backend: stub\n")
    await files.read_files()
    place.now += 50
    await files.read_files()
    state = files.desired_state()
    assert state is not None
    assert "m" not in state.models
    place.write(LAZY.format(enabled="true"))
    await files.read_files()
    assert declared_at() == place.now, "one that was away is another one"


async def test_demand_loads_and_an_edit_of_enabled_ends_it(place: Place) -> None:
    place.write(LAZY.format(enabled="false") + "    replicas: 2\n")
    files = place.files()
    await files.read_files()
    assert _wanted(files) == {"m": 0}
    report = GatewayReport(gateway_id="g", stamp=None, demand={"m": place.now})
    assert files.take_demand(report)
    assert not files.take_demand(report)
    assert _wanted(files) == {"m": 2}
    assert _wanted(place.files()) == {"m": 2}, "demand outlives a restart"
    place.write(LAZY.format(enabled="false") + "    replicas: 1\n")
    await files.read_files()
    assert _wanted(files) == {"m": 0}


async def test_a_model_that_rests_stays_so_over_a_restart_until_it_is_asked_for(place: Place) -> None:
    place.write(LAZY.format(enabled="true") + "    replicas: 2\n")
    files = place.files()
    await files.read_files()
    assert _wanted(files) == {"m": 2}
    before = files.revision
    files.evict_models({"m": "makes room for n"})
    assert files.revision > before
    again = place.files()
    await again.read_files()
    for each in (files, again):
        state = each.desired_state()
        assert state is not None
        assert (state.models["m"].replicas, state.models["m"].demand_replicas) == (0, 2)
        assert state.models["m"].statement.reason == "makes room for n; the next request loads it"
        assert not state.models["m"].drain_ends
    old = GatewayReport(gateway_id="g", stamp=None, demand={"m": place.now - 100})
    assert not again.take_demand(old), "a gateway tells of the last request, before the rest, again and again"
    assert _wanted(again) == {"m": 0}
    place.now += 1
    assert again.take_demand(GatewayReport(gateway_id="g", stamp=None, demand={"m": place.now}))
    assert _wanted(again) == {"m": 2}
    again.evict_models({"m": "not used for 5 s"})
    again.request_reload(["m"])
    assert _wanted(again) == {"m": 2}


async def test_a_clock_that_was_set_back_hides_no_request(place: Place) -> None:
    place.write(LAZY.format(enabled="true"))
    files = place.files()
    await files.read_files()
    files.evict_models({"m": "makes room for n"})
    place.now -= 3600
    # Of a gateway that had nothing to tell before, and of one that had.
    for seconds in (0, -3600):
        assert files.take_demand(GatewayReport(gateway_id="g", stamp=None, demand={"m": place.now + seconds}))
        assert _wanted(files) == {"m": 1}
        files.evict_models({"m": "makes room for n"})


@pytest.mark.parametrize("edit", ["    replicas: 2\n", "    autoload: false\n"])
async def test_an_edit_that_says_what_is_to_run_ends_a_rest_and_another_one_does_not(place: Place, edit: str) -> None:
    text = "models:\n  m:\n    backend: stub\n    enabled: true\n"
    place.write(text + "    autoload: true\n")
    files = place.files()
    await files.read_files()
    files.evict_models({"m": "makes room for n"})
    place.write(text + "    autoload: true\n    stub_text: other\n")
    await files.read_files()
    assert _wanted(files) == {"m": 0}
    place.write(text + ("" if "autoload" in edit else "    autoload: true\n") + edit)
    await files.read_files()
    assert _wanted(files) == {"m": 2 if "replicas" in edit else 1}


async def test_a_statement_of_an_operator_ends_a_rest(place: Place) -> None:
    place.write(LAZY.format(enabled="false"))
    files = place.files()
    await files.read_files()
    files.evict_models({"m": "makes room for n"})
    declared = {"backend": "stub", "autoload": True, "enabled": False}
    files.set_override(Override.from_statement(declared, model="m", action="load", at=place.now))
    assert _wanted(files) == {"m": 1}
    assert files.drop_override("m")
    state = files.desired_state()
    assert state is not None
    assert state.models["m"].statement.reason == "autoload: no request asked for it yet"


async def test_a_statement_that_an_edit_ended_stays_ended_when_the_edit_is_taken_back(place: Place) -> None:
    text = "models:\n  m:\n    backend: stub\n"
    place.write(text)
    await place.files().read_files()
    unload = Override.from_statement({"backend": "stub"}, model="m", action="unload", at=1.0)
    place.store.save_memory(StoredState(overrides={"m": unload}))
    files = place.files()
    await files.read_files()
    assert _wanted(files) == {"m": 0}
    place.write(text + "    replicas: 2\n")
    await files.read_files()
    assert _wanted(files) == {"m": 2}
    place.write(text)
    await files.read_files()
    assert _wanted(files) == {"m": 1}


async def test_a_model_that_vanishes_is_gone_after_two_reads_two_seconds_apart(place: Place) -> None:
    place.write("models:\n  m: {backend: stub}\n  n: {backend: stub}\n")
    files = place.files()
    await files.read_files()
    place.write("models:\n  n: {backend: stub}\n")
    await files.read_files()
    assert set(_wanted(files)) == {"m", "n"}
    wake = files.wake_at()
    assert wake is not None
    place.now = wake
    await files.refresh_files(place.now)
    assert set(_wanted(files)) == {"n"}


async def test_a_disk_that_is_full_costs_memory_and_not_the_pause(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place.write(LAZY.format(enabled="true"))
    files = place.files()
    await files.read_files()

    def full(memory: StoredState) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(place.store, "save_memory", full)
        files.set_paused(True)
        files.remember_loaded(frozenset({"m"}), {})
    state = files.desired_state()
    assert state is not None
    assert state.paused
    assert caplog.text.count("not stored") == 1
    assert files.list_unsaved() == ["whether it is paused", "which models were loaded before"]
    assert not place.store.load_memory().paused
    files.remember_loaded(frozenset(), {})
    assert place.store.load_memory().paused, "the next write brings it along"
    assert files.list_unsaved() == []


def test_names_that_could_not_be_stored_are_told(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    assert STORED_FIELD_WORDS.keys() == StoredState.model_fields.keys() - {"schema_version"}
    files = place.files()

    def full(memory: StoredState) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(place.store, "save_memory", full)
        files.remember_attempts(AttemptNumbers(highest={"m/0/1234": 1}))
        assert files.list_unsaved() == ["which names replicas had"]
    files.remember_attempts(AttemptNumbers(highest={"m/0/1234": 1}))
    assert files.list_unsaved() == []


async def test_a_last_good_state_that_could_not_be_stored_is_tried_again(place: Place) -> None:
    place.write(LAZY.format(enabled="true"))
    files = place.files()
    with no_space():
        await files.read_files()
        assert files.list_unsaved() == ["when models were declared", "what the files last said"]
    await files.read_files()
    files.remember_loaded(frozenset(), {})  # as each round does
    assert files.list_unsaved() == []
    again = place.files()
    again.recover_last_good()
    assert again.in_force is not None


async def test_what_no_longer_fits_ends_and_stays_ended_when_the_edit_is_taken_back(place: Place) -> None:
    text = "models:\n  m:\n    model_path: a.gguf\n    backend: {backend}\n"
    place.write(text.format(backend="llama_server"))
    ended: list[dict[str, Sequence[str]]] = []
    files = DesiredStateSource(
        place.desired, ModelRoots((place.desired,)), place.store, Defaults(), resync_s=10.0, clock=lambda: place.now,
        on_edit=lambda _before, _after, ends, _actor: ended.append(dict(ends)),
    )  # fmt: skip
    await files.read_files()
    assert files.in_force is not None
    params = {"llama_server_n_ctx": 512, "llama_server_threads": 2, "target_inflight": 3}
    files.set_override(
        Override.from_statement(files.in_force.declared_models["m"], model="m", action="load", at=1.0, params=params)
    )
    place.write(text.format(backend="stub"))
    await files.read_files()
    assert ended[-1] == {"m": ["llama_server_n_ctx", "llama_server_threads"]}
    place.write(text.format(backend="llama_server"))
    await files.read_files()
    state = files.desired_state()
    assert state is not None
    assert state.models["m"].params == {"target_inflight": 3}
    place.write(text.format(backend="llama_server") + "    enabled: false\n")
    await files.read_files()
    assert ended[-1] == {"m": ["load"]}


async def test_secrets_of_files_and_of_loads_are_learned_before_anything_is_said_of_them(place: Place) -> None:
    learned: list[str] = []

    def files() -> DesiredStateSource:
        return DesiredStateSource(
            place.desired, ModelRoots((place.desired,)), place.store, Defaults(), resync_s=10.0,
            clock=lambda: place.now, learn=lambda declared: learned.append(str(declared)),
        )  # fmt: skip

    place.write("models:\n  m:\n    backend: stub\n    env: {TOKEN: a-secret}\n")
    first = files()
    await first.read_files()
    assert "a-secret" in learned[-1]
    stated = Override(model="m", action="load", at=1.0, params={"stub_text": "b-secret"})
    first.set_override(stated)
    assert "b-secret" in learned[-1]
    learned.clear()
    files().recover_last_good()
    assert "a-secret" in str(learned)
    assert "b-secret" in str(learned)


async def test_a_problem_is_logged_without_secrets(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.write("models:\n  m:\n    backend: openai_remote\n    base_url: http://u:pa55word@h?x\n")
    await place.files().read_files()
    assert "***@h" in caplog.text
    assert "pa55word" not in caplog.text
