"""Keys on their way from the files to the routing table, over restarts, broken files and a runtime that is down."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from controller.artifacts.model_roots import ModelRoots
from controller.config.debounce import DebouncedState
from controller.desired.config_diff import diff_keys
from controller.desired.resolve import Defaults
from controller.desired.source import DesiredStateSource
from controller.journal.event_log import EventLog
from controller.journal.recorder import Recorder
from controller.observe.gateway_hub import GatewayHub
from controller.redaction.redactor import redact_nothing
from controller.schema.keys import Key
from controller.schema.override import Override
from controller.schema.routing import ModelRoute, RoutingTable, Stamp
from controller.schema.status import ModelState
from controller.schema.tools import McpServerRoute, ToolRoute
from controller.status.permissions import build_keys
from controller.storage.state_dir import StateDir
from tests.support.dry_runs import CHAT, DryRunHarness

MODELS = "models:\n  m:\n    backend: stub\n"
A, B = "a" * 64, "b" * 64
KEYS = f"keys:\n  ci:\n    sha256: {A}\n"


class Place:
    """A folder of files, a state folder, a clock, and what was told of edits."""

    def __init__(self, root: Path) -> None:
        self.desired = root / "desired"
        self.desired.mkdir()
        self.now = 1_000.0
        self.store = StateDir.open_folder(root / "state")
        self.edits: list[tuple[list[str], dict[str, Sequence[str]]]] = []

    def files(self) -> DesiredStateSource:
        """As a controller that starts makes them."""
        files = DesiredStateSource(
            self.desired, ModelRoots((self.desired,)), self.store, Defaults(), resync_s=10.0, clock=lambda: self.now,
            on_edit=lambda _, after, ends, _actor: self.edits.append((sorted(after.keys), dict(ends))),
        )  # fmt: skip
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


def keys_of(files: DesiredStateSource, place: Place) -> list[str]:
    state = files.desired_state()
    assert state is not None
    return [key.name for key in build_keys(state.keys)]


async def test_an_edit_of_keys_is_wanted_at_once_and_touches_no_model(place: Place) -> None:
    place.write(MODELS + KEYS)
    files = place.files()
    await files.read_files()
    before = files.desired_state()
    assert files.in_force is not None
    files.set_override(Override.from_statement(files.in_force.declared_models["m"], model="m", action="load", at=1.0))
    loaded = files.desired_state()
    place.now += 50
    place.write(f"{MODELS}{KEYS}  web:\n    sha256: {B}\n")
    await files.read_files()
    after = files.desired_state()
    assert before is not None
    assert loaded is not None
    assert after is not None
    assert (keys_of(files, place), after.models) == (["ci", "web"], loaded.models)
    assert after.revision > loaded.revision
    assert after.generation > before.generation
    assert place.edits == [(["ci"], {}), (["ci", "web"], {})]


async def test_broken_files_drop_no_key_also_over_a_restart(place: Place) -> None:
    place.write(MODELS + KEYS)
    await place.files().read_files()
    for broken in ("models: [", "models: {m: {backend: nope}}\n", f"{MODELS}keys: {{ci: {{sha256: rh-x}}}}\n"):
        place.write(broken)
        again = place.files()
        assert keys_of(again, place) == ["ci"], "before the files are read"
        await again.read_files()
        place.now += 100
        await again.read_files()
        assert again.list_problems()
        assert keys_of(again, place) == ["ci"]


async def test_the_last_key_is_gone_when_two_reads_agree_and_stays_gone(place: Place) -> None:
    place.write(MODELS + KEYS)
    files = place.files()
    await files.read_files()
    place.write(MODELS)
    await files.read_files()
    assert (keys_of(files, place), files.wake_at()) == (["ci"], place.now + 2)
    place.now += 2
    await files.refresh_files(place.now)
    assert (keys_of(files, place), keys_of(place.files(), place)) == ([], [])


# The table.


def hub() -> GatewayHub:
    return GatewayHub("i", 3, wake=lambda: None, clock=lambda: 0.0)


def route(name: str) -> ModelRoute:
    return ModelRoute(name=name, backend="stub", state=ModelState.LOADED, created=1, served_name=name)


CI = Key(name="ci", sha256=A, tenant="ci")


def test_a_change_of_keys_alone_is_a_new_table() -> None:
    made = hub()
    assert made.publish_table((route("a"),), (CI,)) == made.publish_table((route("a"),), (CI,)) == Stamp(epoch=3, seq=1)
    assert made.publish_table((route("a"),), (CI.model_copy(update={"weight": 2.0}),)) == Stamp(epoch=3, seq=2)
    assert made.publish_table((route("a"),)) == Stamp(epoch=3, seq=3)
    assert made.table is not None
    assert RoutingTable.model_validate_json(made.table.model_dump_json()) == made.table


def test_keys_alone_make_no_table() -> None:
    made = hub()
    made.replace_permissions((CI,), (), ())
    first = made.table
    made.publish_table((route("a"),))
    made.replace_permissions((CI,), (), ())
    assert first is None
    assert made.table is not None
    assert (made.table.models, made.table.keys, made.table.stamp.seq) == ((route("a"),), (CI,), 2)


# What is told of it.


def test_only_names_are_told_of_an_edit(tmp_path: Path) -> None:
    before: dict[str, dict[str, object]] = {
        "gone": {"sha256": A},
        "same": {"sha256": A},
        "ci": {"sha256": A, "weight": 2, "tenant": "t"},
    }
    after: dict[str, dict[str, object]] = {
        "new": {"sha256": B},
        "same": {"sha256": A},
        "ci": {"sha256": B, "models": ["m"], "tenant": "t"},
    }
    assert [(each.key, each.change, each.fields) for each in diff_keys(before, after)] == [
        ("ci", "edited", ["models", "sha256", "weight"]),
        ("gone", "removed", ["sha256"]),
        ("new", "added", ["sha256"]),
    ]
    journal = EventLog(tmp_path / "journal.db", keep=10)
    recorder = Recorder(journal, lambda: 1_000.0, redact_nothing)
    recorder.record_edits(
        DebouncedState({}, {}, declared_keys=before), DebouncedState({}, {}, declared_keys=after), {}, "files"
    )
    entries = journal.read_page(("file",), None, None, 10)
    journal.close()
    assert sorted(entry.message for entry in entries) == [
        "the key ci is edited: models, sha256, weight",
        "the key gone is no longer declared",
        "the key new is declared",
    ]
    assert {"key": "gone", "change": "removed", "fields": ["sha256"]} in [dict(entry.details) for entry in entries]
    assert not any(secret in str(entry) for entry in entries for secret in (A, B))


async def test_a_dry_run_tells_of_keys(tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text(CHAT)
    harness = DryRunHarness(tmp_path)
    done = await harness.with_files(keys=KEYS)
    assert (done.ok, done.changes) == (True, [])
    assert [each.model_dump() for each in done.keys] == [{"key": "ci", "change": "added", "fields": ["sha256"]}]
    (tmp_path / "keys.yaml").write_text(KEYS)
    assert (await harness.with_files(models=CHAT)).keys == []
    refused = await harness.with_files(keys=f"{KEYS}    weight: 0\n")
    assert (refused.ok, refused.keys) == (False, [])


async def test_a_dry_run_tells_of_tools(tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text(CHAT)
    harness = DryRunHarness(tmp_path)
    text = "tools: {calculate: {timeout_s: 5}}\nmcp_servers: {a: {url: https://a/, headers: {X: s3cr3t}}}\n"
    done = await harness.with_files(tools=text)
    assert (done.ok, done.changes, done.keys) == (True, [], [])
    assert [each.model_dump() for each in done.tools] == [
        {"kind": "tool", "name": "calculate", "change": "added", "fields": ["timeout_s"]},
        {"kind": "mcp_server", "name": "a", "change": "added", "fields": ["headers", "url"]},
    ]
    assert "s3cr3t" not in done.model_dump_json()


def test_a_change_of_tools_alone_is_a_new_table() -> None:
    made = hub()
    tool, server = ToolRoute(name="calculate"), McpServerRoute(name="a", url="https://a/")
    assert made.publish_table((), (), (tool,), (server,)) == made.publish_table((), (), (tool,), (server,))
    made.publish_table((), (), (tool,), (server.model_copy(update={"url": None}),))
    assert made.publish_table((), (), (), (server.model_copy(update={"url": None}),)).seq == 3
    made.replace_permissions((CI,), (), ())
    assert made.table is not None
    assert (made.table.stamp.seq, made.table.keys, made.table.tools, made.table.mcp_servers) == (4, (CI,), (), ())


async def test_tools_are_wanted_at_once_and_their_secrets_are_learned(place: Place) -> None:
    place.write(
        f"{MODELS}tools: {{calculate: {{}}}}\nmcp_servers: {{a: {{url: https://a/, headers: {{X: s3cr3t}}}}}}\n"
    )
    learned: dict[str, object] = {}
    files = DesiredStateSource(
        place.desired, ModelRoots((place.desired,)), place.store, Defaults(), resync_s=10.0, clock=lambda: place.now,
        learn=learned.update,
    )  # fmt: skip
    await files.read_files()
    state = files.desired_state()
    assert state is not None
    assert (list(state.tools), list(state.mcp_servers)) == (["calculate"], ["a"])
    assert learned["mcp:a"] == {"url": "https://a/", "headers": {"X": "s3cr3t"}}
    revision = state.revision
    place.write(MODELS)
    await files.read_files()
    state = files.desired_state()
    assert state is not None
    assert (list(state.tools), list(state.mcp_servers), state.revision > revision) == ([], ["a"], True)
    assert files.wake_at() == place.now + 2
    again = place.files().desired_state()
    assert again is not None
    assert list(again.mcp_servers) == ["a"], "also over a restart"
