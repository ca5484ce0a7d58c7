"""What proposed files would do, reported from a real folder and changing nothing in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from contract.admin import DryRun, ProposedFiles, ProposedLoad
from contract.declarations import RuntimeDeclarations
from contract.errors import RoundhouseError
from contract.override import Evicted, Override
from controller.config.parse import MAX_FILE_BYTES
from controller.reports.dry_run import AT_ONCE
from controller.state import Draining, Failure, Phase, ReplicaKey
from tests.support.dry_runs import CHAT, NOW, OTHERS, DryRunHarness
from tests.support.process_engines import ProcessEngines

KEYS = f"keys:\n  ci:\n    sha256: {'a' * 64}\n"


@pytest.fixture
def harness(tmp_path: Path) -> DryRunHarness:
    (tmp_path / "models.yaml").write_text(CHAT)
    (tmp_path / "others.yaml").write_text(OTHERS)
    return DryRunHarness(tmp_path)


def steps(done: DryRun) -> list[tuple[str, str | None]]:
    """The plan's actions: kind, and replica."""
    assert done.plan is not None
    return [(each.kind, each.replica) for each in done.plan.actions]


def blocked(done: DryRun) -> list[tuple[str, str]]:
    """Models that cannot start, though nothing else is done, and why."""
    assert done.plan is not None
    assert done.plan.actions == []
    return [(each.model, each.reason) for each in done.plan.blocked]


def effects(done: DryRun) -> list[tuple[str, str]]:
    """Models that are changed, and to what effect."""
    return [(each.model, each.effect) for each in done.changes]


async def test_files_as_they_are_change_nothing(harness: DryRunHarness) -> None:
    done = await harness.with_files(models=CHAT + "# a comment\n")
    assert (done.ok, done.changes, harness.runtime.calls, steps(done), blocked(done)) == (True, [], [], [], [])
    assert done.plan is not None
    assert done.plan.generation == 8


async def test_files_are_merged_with_the_others_in_their_order(harness: DryRunHarness) -> None:
    (harness.folder / "local.yaml").write_text("models:\n  chat:\n    replicas: 2\n")
    assert await harness.with_files(models=CHAT + "    replicas: 1\n") == await harness.with_files(models=CHAT)


async def test_an_edit_that_touches_the_engine_names_what_is_restarted(harness: DryRunHarness) -> None:
    done = await harness.with_files(models=CHAT + "    extra_args: [-v]\n    replicas: 1\n")
    [change] = done.changes
    assert (change.model, change.change, change.effect, change.restarts) == ("chat", "edited", "restart", ["chat-0"])
    assert [(each.field, each.before, each.after) for each in change.fields] == [
        ("extra_args", None, ["-v"]),
        ("replicas", None, 1),
    ]
    assert (steps(done), harness.runtime.calls) == ([("start", "chat/0")], ["preflight chat"])


@pytest.mark.parametrize(
    ("edit", "effect"),
    [
        ("    aliases: [other]\n", "none"),
        ("    replicas: 3\n", "scale"),
        ("    enabled: false\n", "stop"),
        ("    extra_args: [-v]\n    replicas: 2\n", "restart"),
    ],
)
async def test_effects_on_a_model_that_runs(harness: DryRunHarness, edit: str, effect: str) -> None:
    assert (await harness.change(edit)).effect == effect


async def test_what_does_not_run_is_not_restarted(harness: DryRunHarness) -> None:
    harness.replicas = []
    assert (await harness.change("    extra_args: [-v]\n")).effect == "start"
    assert (await harness.change("    enabled: false\n")).effect == "stop", "it is wanted"
    (harness.folder / "models.yaml").write_text(CHAT + "    enabled: false\n")
    change = await harness.change("    enabled: false\n    extra_args: [-v]\n")
    assert (change.effect, change.restarts) == ("none", [])
    assert (await harness.change("    enabled: true\n")).effect == "start"


async def test_only_engines_that_would_be_replaced_count_as_restarts(harness: DryRunHarness) -> None:
    (harness.folder / "models.yaml").write_text(CHAT + "    replicas: 4\n")
    old = harness.running()
    old[0] = replace(old[0], draining=Draining(1.0, None))
    old[1] = replace(old[1], phase=Phase.EXITED)
    harness.replicas = old
    # Of the two that stay, the one beyond the new count is stopped.
    assert (await harness.change("    replicas: 3\n    extra_args: [-v]\n")).restarts == ["chat-2"]


async def test_an_edit_in_the_middle_of_a_roll_answers_for_its_own_restarts_alone(harness: DryRunHarness) -> None:
    [first] = harness.replicas = harness.running()
    (harness.folder / "models.yaml").write_text(CHAT + "    extra_args: [-v]\n")
    change = await harness.change("    extra_args: [-v]\n    aliases: [b]\n")
    assert (change.effect, change.restarts) == ("none", []), "the roll goes on anyway"
    (harness.folder / "models.yaml").write_text(CHAT + "    replicas: 2\n    extra_args: [-v]\n")
    harness.replicas = [first, harness.running()[1]]
    assert (await harness.change("    replicas: 2\n")).restarts == ["chat-1"], "what was rolled"


async def test_models_come_and_go_with_their_files(harness: DryRunHarness) -> None:
    done = await harness.with_files(models=None, new="models:\n  fresh:\n    backend: stub\n")
    assert [(each.model, each.change, each.effect) for each in done.changes] == [
        ("chat", "removed", "stop"),
        ("fresh", "added", "start"),
    ]
    assert done.plan is not None
    assert {(each.kind, each.model) for each in done.plan.actions} == {("drain", "chat"), ("start", "fresh")}
    assert sorted(path.name for path in harness.folder.iterdir()) == ["models.yaml", "others.yaml"]


async def test_a_remote_starts_nothing_here_and_clients_gain_and_lose_it(harness: DryRunHarness) -> None:
    done = await harness.with_files(others=OTHERS.replace("http://h", "http://u:password@i"))
    assert effects(done) == [("far", "none")]
    assert done.changes[0].fields[0].after == "http://***@i/v1"
    assert harness.runtime.calls == []

    async def effect(text: str | None) -> str:
        return dict(effects(await harness.with_files(others=text)))["far"]

    assert await effect(None) == "stop"
    assert await effect(OTHERS + "    enabled: false\n") == "stop"
    assert await effect(OTHERS + "    aliases: [b]\n") == "none"
    assert await effect(OTHERS.replace("openai_remote\n    base_url: http://h/v1", "stub")) == "start"
    (harness.folder / "others.yaml").write_text(OTHERS + "    enabled: false\n")
    assert await effect(OTHERS) == "start"
    assert await effect(OTHERS + "    enabled: false\n    aliases: [b]\n") == "none"


async def test_problems_are_a_result_with_file_and_line_and_without_secrets(harness: DryRunHarness) -> None:
    done = await harness.with_files(
        models=CHAT + "    replica: 2\n", others=OTHERS.replace("h/v1", "u:password@h/v1?x")
    )
    assert (done.ok, done.changes, done.plan) == (False, [], None)
    assert [(Path(each.file).name, each.line) for each in done.problems] == [("models.yaml", 4), ("others.yaml", 8)]
    assert "password" not in done.model_dump_json()


async def test_a_broken_file_can_be_mended_by_the_proposal(harness: DryRunHarness) -> None:
    declared = harness.declared()
    others = harness.folder / "others.yaml"
    others.write_text("{")
    harness.declared = lambda: declared  # type: ignore[method-assign]
    assert not (await harness.with_files(models=CHAT)).ok
    assert (await harness.with_files(others=OTHERS)).changes == []
    others.unlink()
    others.symlink_to("nowhere")
    assert (await harness.with_files(others=OTHERS)).changes == []
    assert [each.change for each in (await harness.with_files(others=None)).changes] == ["removed", "removed"]


@pytest.mark.parametrize("name", ["../up.yaml", "a/b.yaml", ".hidden.yaml", "notes.txt", "schema.json", "a\n.yaml", ""])
async def test_only_names_of_desired_state_files_are_taken(harness: DryRunHarness, name: str) -> None:
    with pytest.raises(RoundhouseError) as refused:
        await harness.of(ProposedFiles(files={name: CHAT}))
    assert (refused.value.entry.code, refused.value.param) == ("invalid_request", "files")


async def test_what_cannot_be_a_file_is_refused(harness: DryRunHarness) -> None:
    for text in ("#" * (MAX_FILE_BYTES + 1), "\ud83d"):
        with pytest.raises(RoundhouseError, match=r"models\.yaml"):
            await harness.with_files(models=text)
    with pytest.raises(RoundhouseError, match=r"no file modles\.yaml"):
        await harness.with_files(modles=None)


def test_a_dry_run_of_nothing_is_refused() -> None:
    with pytest.raises(ValidationError, match="must have `files`, `models` or `loads`"):
        ProposedFiles()


async def test_what_cannot_start_shows_as_blocked_without_secrets(harness: DryRunHarness) -> None:
    harness.redactor.learn_secrets({"chat": {"env": {"TOKEN": "hunter1-hunter1"}}})
    harness.runtime.errors["chat"] = "no such file, with hunter1-hunter1 and hunter2-hunter2"
    done = await harness.with_files(models=CHAT + "    env: {HUB_TOKEN: hunter2-hunter2}\n")
    assert blocked(done) == [("chat", "no such file, with *** and ***")]
    assert harness.redactor.redact_text("chat", "hunter2-hunter2") == "hunter2-hunter2", "a proposal is not remembered"
    harness.runtime.down = True
    assert blocked(await harness.with_files(models=CHAT + "    extra_args: [-v]\n")) == [("chat", "the daemon is down")]


async def test_a_missing_model_file_shows_with_a_real_runtime(harness: DryRunHarness, tmp_path: Path) -> None:
    runtime = ProcessEngines(tmp_path / "host").runtime()
    harness.runtime = runtime  # type: ignore[assignment]
    [(model, reason)] = blocked(await harness.with_files(models=CHAT + "  new:\n    model_path: missing.gguf\n"))
    assert (model, "missing.gguf" in reason) == ("new", True)
    assert await runtime.list_replicas() == []
    await runtime.close()


async def test_preflights_run_side_by_side_but_few_at_a_time(harness: DryRunHarness) -> None:
    many = "".join(f"  m{number}:\n    backend: stub\n" for number in range(20))
    done = await harness.with_files(many=f"models:\n{many}")
    assert len(done.changes) == len(harness.runtime.calls) == 20
    assert harness.runtime.most == AT_ONCE
    assert {kind for kind, _ in steps(done)} == {"start"}


async def test_an_edit_ends_a_load_or_what_it_speaks_over_or_what_no_longer_fits(harness: DryRunHarness) -> None:
    harness.state("load", params={"target_inflight": 4, "extra_args": ["-a"]})
    assert (await harness.change("    extra_args: [-v]\n")).ends == ["extra_args"]
    assert (await harness.change("    vram_mib: 5\n")).ends == []
    assert (await harness.change("    enabled: false\n")).ends == ["load"]
    harness.state("load", params={"target_inflight": 2, "stub_text": "x"})
    done = await harness.with_files(models="models:\n  chat:\n    backend: openai_remote\n    base_url: http://h\n")
    assert done.changes[0].ends == ["stub_text"]
    harness.state("unload")
    change = await harness.change("    replicas: 2\n")
    assert (change.ends, change.effect) == (["unload"], "start")
    assert (await harness.change("    extra_args: [-v]\n")).effect == "none"
    done = await harness.with_files(models=None)
    assert (done.changes[0].ends, done.changes[0].effect) == (["unload"], "none")


async def test_a_standing_load_hides_an_edit_that_it_rules_over(harness: DryRunHarness) -> None:
    (harness.folder / "models.yaml").write_text(CHAT + "    enabled: false\n")
    harness.state("load")
    assert (await harness.change("    enabled: false\n    aliases: [b]\n")).effect == "none"
    assert (await harness.change("    enabled: false\n    extra_args: [-v]\n")).effect == "restart"


@pytest.mark.parametrize(("rests", "effect"), [(False, "stop"), (True, "start")])
async def test_an_edit_of_how_many_run_ends_what_a_request_asked_for_and_a_rest(
    harness: DryRunHarness, rests: bool, effect: str
) -> None:
    lazy = OTHERS
    if rests:
        lazy = OTHERS.replace("enabled: false\n    autoload: true", "enabled: true\n    autoload: true")
        (harness.folder / "others.yaml").write_text(lazy)
        harness.rested["lazy"] = Evicted(at=900.0, reason="makes room for chat")
    else:
        harness.demand["lazy"] = 900.0
    kept = await harness.with_files(others=lazy.replace("autoload: true", "autoload: true\n    aliases: [b]"))
    assert (effects(kept), steps(kept)) == ([("lazy", "none")], [])
    ended = await harness.with_files(others=lazy.replace("autoload: true", "autoload: true\n    replicas: 2"))
    assert effects(ended) == [("lazy", effect)]


async def proposed_load(harness: DryRunHarness, model: str, **statement: Any) -> DryRun:
    declared = harness.declared().declared_models[model]
    load = Override.from_statement(declared, model=model, action="load", at=NOW, **statement)
    return await harness.of(ProposedFiles(loads={model: ProposedLoad()}), load)


async def test_a_load_is_shown_by_its_first_steps(harness: DryRunHarness) -> None:
    done = await proposed_load(harness, "lazy", replicas=1)
    assert steps(done) == [("start", "lazy/0")]
    assert (done.ok, done.changes, harness.runtime.calls) == (True, [], ["preflight lazy"])
    assert harness.overrides == {}, "nothing is stated"
    assert steps(await proposed_load(harness, "chat", params={"extra_args": ["-v"]})) == [("start", "chat/0")]


async def test_a_load_that_cannot_start_says_why_and_earlier_failures_do_not_delay_it(harness: DryRunHarness) -> None:
    key = ReplicaKey("lazy", 0, harness.desired().models["lazy"].spec_hash)
    harness.failures[key] = Failure(3, NOW - 1, "it broke", None)
    assert steps(await proposed_load(harness, "lazy")) == [("start", "lazy/0")]
    harness.runtime.errors["lazy"] = "no such file"
    [(model, reason)] = blocked(await proposed_load(harness, "lazy"))
    assert (model, "no such file" in reason) == ("lazy", True)


async def test_a_declaration_at_run_time_is_shown_as_an_added_model(harness: DryRunHarness) -> None:
    done = await harness.of(ProposedFiles(models={"new": {"backend": "stub"}}))
    assert [(each.model, each.change, each.effect) for each in done.changes] == [("new", "added", "start")]
    assert steps(done) == [("start", "new/0")]
    wrong = await harness.of(ProposedFiles(models={"new": {"backend": "stub", "replicas": 0}}))
    assert (wrong.ok, wrong.plan, [each.field for each in wrong.problems]) == (False, None, ["models.new.replicas"])
    with pytest.raises(RoundhouseError) as refused:
        await harness.of(ProposedFiles(models={"chat": {"backend": "stub"}}))
    assert refused.value.entry.code == "declared_in_files"
    assert harness.declarations == RuntimeDeclarations()


async def test_keys_and_tools_are_shown_by_their_names_and_fields(harness: DryRunHarness) -> None:
    tools = "tools: {calculate: {timeout_s: 5}}\nmcp_servers: {a: {url: https://a/, headers: {X: s3cr3t}}}\n"
    done = await harness.with_files(keys=KEYS, tools=tools)
    assert (done.ok, done.changes) == (True, [])
    assert [each.model_dump() for each in done.keys] == [{"key": "ci", "change": "added", "fields": ["sha256"]}]
    assert [each.model_dump() for each in done.tools] == [
        {"kind": "tool", "name": "calculate", "change": "added", "fields": ["timeout_s"]},
        {"kind": "mcp_server", "name": "a", "change": "added", "fields": ["headers", "url"]},
    ]
    assert "s3cr3t" not in done.model_dump_json()
    (harness.folder / "keys.yaml").write_text(KEYS)
    assert (await harness.with_files(models=CHAT)).keys == []
    refused = await harness.with_files(keys=f"{KEYS}    weight: 0\n")
    assert (refused.ok, refused.keys) == (False, [])
