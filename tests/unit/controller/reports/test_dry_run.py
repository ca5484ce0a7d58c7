"""What proposed files would do, told from a real folder and changing nothing in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from controller.config.read import MAX_FILE_BYTES
from controller.config.tools import DeclaredTools
from controller.desired.resolve import Defaults
from controller.reports.dry_run import AT_ONCE, run_dry_run
from controller.schema.admin import ProposedFiles, ProposedLoad
from controller.schema.declarations import RuntimeDeclarations
from controller.schema.errors import RoundhouseError
from controller.schema.override import Evicted, Override
from controller.state import Draining, Failure, ObservedState, Phase, ReplicaKey
from tests.support.config_files import MODELS_ROOT
from tests.support.dry_runs import CHAT, NOW, OTHERS, DryRunHarness
from tests.support.process_engines import ProcessEngines


@pytest.fixture
def harness(tmp_path: Path) -> DryRunHarness:
    (tmp_path / "models.yaml").write_text(CHAT)
    (tmp_path / "others.yaml").write_text(OTHERS)
    return DryRunHarness(tmp_path)


async def test_files_as_they_are_change_nothing(harness: DryRunHarness) -> None:
    done = await harness.with_files(models=CHAT + "# a comment\n")
    assert (done.ok, done.changes, harness.runtime.calls) == (True, [], [])
    assert done.plan is not None
    assert (done.plan.actions, done.plan.blocked, done.plan.generation) == ([], [], 8)


async def test_an_edit_that_touches_the_engine_names_what_is_restarted(harness: DryRunHarness) -> None:
    done = await harness.with_files(models=CHAT + "    extra_args: [-v]\n    replicas: 1\n")
    assert done.plan is not None
    [change] = done.changes
    assert (change.model, change.change, change.effect, change.restarts) == ("chat", "edited", "restart", ["chat-0"])
    assert [(each.field, each.before, each.after) for each in change.fields] == [
        ("extra_args", None, ["-v"]),
        ("replicas", None, 1),
    ]
    [action] = done.plan.actions
    assert (action.kind, action.model, action.replica) == ("start", "chat", "chat/0")
    assert harness.runtime.calls == ["preflight chat"]


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


async def test_taking_an_edit_back_in_the_middle_of_a_roll_restarts_what_was_rolled(harness: DryRunHarness) -> None:
    first = harness.running()[0]
    (harness.folder / "models.yaml").write_text(CHAT + "    replicas: 2\n    extra_args: [-v]\n")
    harness.replicas = [first, harness.running()[1]]
    assert (await harness.change("    replicas: 2\n")).restarts == ["chat-1"]


async def test_a_roll_that_goes_on_anyway_is_not_the_edits_doing(harness: DryRunHarness) -> None:
    harness.replicas = harness.running()
    (harness.folder / "models.yaml").write_text(CHAT + "    extra_args: [-v]\n")
    change = await harness.change("    extra_args: [-v]\n    aliases: [b]\n")
    assert (change.effect, change.restarts) == ("none", [])


async def test_what_is_wanted_and_does_not_run_yet_is_stopped_too(harness: DryRunHarness) -> None:
    harness.replicas = []
    assert (await harness.change("    enabled: false\n")).effect == "stop"


async def test_models_come_and_go_with_their_files(harness: DryRunHarness) -> None:
    done = await harness.with_files(models=None, new="models:\n  fresh:\n    backend: stub\n")
    assert [(each.model, each.change, each.effect) for each in done.changes] == [
        ("chat", "removed", "stop"),
        ("fresh", "added", "start"),
    ]
    assert done.plan is not None
    assert {(each.kind, each.model) for each in done.plan.actions} == {("drain", "chat"), ("start", "fresh")}
    assert sorted(path.name for path in harness.folder.iterdir()) == ["models.yaml", "others.yaml"]


async def test_a_remote_starts_nothing_here(harness: DryRunHarness) -> None:
    done = await harness.with_files(others=OTHERS.replace("http://h", "http://u:password@i"))
    assert [(each.model, each.effect) for each in done.changes] == [("far", "none")]
    assert done.changes[0].fields[0].after == "http://***@i/v1"
    assert harness.runtime.calls == []


async def test_files_are_merged_with_the_others_in_their_order(harness: DryRunHarness) -> None:
    (harness.folder / "local.yaml").write_text("models:\n  chat:\n    replicas: 2\n")
    assert await harness.with_files(models=CHAT + "    replicas: 1\n") == await harness.with_files(models=CHAT)


async def test_problems_are_an_answer_with_file_and_line_and_without_secrets(harness: DryRunHarness) -> None:
    done = await harness.with_files(
        models=CHAT + "    replica: 2\n", others=OTHERS.replace("h/v1", "u:password@h/v1?x")
    )
    assert (done.ok, done.changes, done.plan) == (False, [], None)
    assert [(Path(each.file).name, each.line) for each in done.problems] == [("models.yaml", 4), ("others.yaml", 8)]
    assert "password" not in done.model_dump_json()


async def test_a_broken_file_can_be_mended_by_the_proposal(harness: DryRunHarness) -> None:
    declared = harness.declared()
    (harness.folder / "others.yaml").write_text("{")
    harness.declared = lambda: declared  # type: ignore[method-assign]
    assert not (await harness.with_files(models=CHAT)).ok
    assert (await harness.with_files(others=OTHERS)).changes == []
    (harness.folder / "others.yaml").unlink()
    (harness.folder / "others.yaml").symlink_to("nowhere")
    assert (await harness.with_files(others=OTHERS)).changes == []
    assert [each.change for each in (await harness.with_files(others=None)).changes] == ["removed", "removed"]


@pytest.mark.parametrize("name", ["../up.yaml", "a/b.yaml", ".hidden.yaml", "notes.txt", "schema.json", "a\n.yaml", ""])
async def test_only_names_of_desired_state_files_are_taken(harness: DryRunHarness, name: str) -> None:
    proposed = ProposedFiles(files={name: CHAT})
    with pytest.raises(RoundhouseError) as refused:
        await run_dry_run(
            proposed, folder=harness.folder, roots=MODELS_ROOT, desired_now=harness.desired(),
            observed=ObservedState(NOW), overrides={}, demand={}, rested={}, defaults=Defaults(),
            declared_now={}, keys_now={}, tools_now=DeclaredTools(), declarations=RuntimeDeclarations(),
                find_sources=lambda _: {},
            runtime=harness.runtime, redactor=harness.redactor, now=NOW,
        )  # fmt: skip
    assert (refused.value.entry.code, refused.value.param) == ("invalid_request", "files")


async def test_what_cannot_be_a_file_is_refused(harness: DryRunHarness) -> None:
    for text in ("#" * (MAX_FILE_BYTES + 1), "\ud83d"):
        with pytest.raises(RoundhouseError, match=r"models\.yaml"):
            await harness.with_files(models=text)
    with pytest.raises(RoundhouseError, match=r"no file modles\.yaml"):
        await harness.with_files(modles=None)


async def test_what_cannot_start_shows_as_blocked(harness: DryRunHarness) -> None:
    harness.runtime.errors["chat"] = "model_path: no such file, with hunter2-hunter2"
    done = await harness.with_files(models=CHAT + "    env: {HUB_TOKEN: hunter2-hunter2}\n")
    assert done.plan is not None
    assert done.plan.actions == []
    assert [(each.model, each.reason) for each in done.plan.blocked] == [("chat", "model_path: no such file, with ***")]
    harness.runtime.down = True
    done = await harness.with_files(models=CHAT + "    extra_args: [-v]\n")
    assert done.plan is not None
    assert [each.reason for each in done.plan.blocked] == ["the daemon is down"]


async def test_a_missing_model_file_shows_with_a_real_runtime(harness: DryRunHarness, tmp_path: Path) -> None:
    runtime = ProcessEngines(tmp_path / "host").runtime()
    harness.runtime = runtime  # type: ignore[assignment]
    done = await harness.with_files(models=CHAT + "  new:\n    model_path: missing.gguf\n")
    assert done.plan is not None
    [blocked] = done.plan.blocked
    assert blocked.model == "new"
    assert "missing.gguf" in blocked.reason
    assert await runtime.list_replicas() == []
    await runtime.close()


async def test_preflights_run_side_by_side_but_few_at_a_time(harness: DryRunHarness) -> None:
    many = "".join(f"  m{number}:\n    backend: stub\n" for number in range(20))
    done = await harness.with_files(many=f"models:\n{many}")
    assert len(done.changes) == len(harness.runtime.calls) == 20
    assert harness.runtime.most == AT_ONCE
    assert done.plan is not None
    assert {each.kind for each in done.plan.actions} == {"start"}


async def test_an_edit_ends_a_load_or_what_it_speaks_over(harness: DryRunHarness) -> None:
    harness.state("load", params={"target_inflight": 4, "extra_args": ["-a"]})
    assert (await harness.change("    extra_args: [-v]\n")).ends == ["extra_args"]
    assert (await harness.change("    vram_mib: 5\n")).ends == []
    assert (await harness.change("    enabled: false\n")).ends == ["load"]
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


async def test_an_edit_of_enabled_ends_what_a_request_asked_for(harness: DryRunHarness) -> None:
    harness.demand["lazy"] = 900.0
    kept = await harness.with_files(others=OTHERS.replace("autoload: true", "autoload: true\n    vram_mib: 5"))
    assert [(each.model, each.effect) for each in kept.changes] == [("lazy", "none")]
    ended = await harness.with_files(others=OTHERS.replace("autoload: true", "autoload: true\n    replicas: 2"))
    assert [(each.model, each.effect) for each in ended.changes] == [("lazy", "stop")]


async def test_a_reason_shows_no_secret_of_what_was_declared_before_either(harness: DryRunHarness) -> None:
    harness.redactor.learn_secrets({"chat": {"env": {"TOKEN": "hunter1-hunter1"}}})
    harness.runtime.errors["chat"] = "hunter1-hunter1 and hunter2-hunter2"
    done = await harness.with_files(models=CHAT + "    env: {HUB_TOKEN: hunter2-hunter2}\n")
    assert done.plan is not None
    assert [each.reason for each in done.plan.blocked] == ["*** and ***"]
    assert harness.redactor.redact_text("chat", "hunter2-hunter2") == "hunter2-hunter2", "a proposal is not remembered"


async def test_clients_gain_and_lose_a_remote(harness: DryRunHarness) -> None:
    async def effects(text: str | None) -> list[str]:
        done = await harness.with_files(others=text)
        return [each.effect for each in done.changes if each.model == "far"]

    assert await effects(None) == ["stop"]
    assert await effects(OTHERS + "    enabled: false\n") == ["stop"]
    assert await effects(OTHERS + "    aliases: [b]\n") == ["none"]
    assert await effects(OTHERS.replace("openai_remote\n    base_url: http://h/v1", "stub")) == ["start"]
    (harness.folder / "others.yaml").write_text(OTHERS + "    enabled: false\n")
    assert await effects(OTHERS) == ["start"]
    assert await effects(OTHERS + "    enabled: false\n    aliases: [b]\n") == ["none"]


async def test_an_edit_ends_what_of_a_load_no_longer_fits(harness: DryRunHarness) -> None:
    harness.state("load", params={"stub_text": "x", "target_inflight": 2})
    done = await harness.with_files(models="models:\n  chat:\n    backend: openai_remote\n    base_url: http://h\n")
    assert done.changes[0].ends == ["stub_text"]


async def test_a_model_that_rests_rests_on_until_an_edit_says_how_many_run(harness: DryRunHarness) -> None:
    lazy = OTHERS.replace("enabled: false\n    autoload: true", "enabled: true\n    autoload: true")
    (harness.folder / "others.yaml").write_text(lazy)
    harness.rested["lazy"] = Evicted(at=900.0, reason="makes room for chat")
    kept = await harness.with_files(others=lazy.replace("autoload: true", "autoload: true\n    aliases: [b]"))
    assert kept.plan is not None
    assert [(each.model, each.effect) for each in kept.changes] == [("lazy", "none")]
    assert kept.plan.actions == []
    ended = await harness.with_files(others=lazy.replace("autoload: true", "autoload: true\n    replicas: 2"))
    assert [(each.model, each.effect) for each in ended.changes] == [("lazy", "start")]


def load_of(harness: DryRunHarness, model: str, **statement: Any) -> Override:
    """A load that is only proposed."""
    return Override.from_statement(
        harness.declared().declared_models[model], model=model, action="load", at=NOW, **statement
    )


async def test_a_load_is_told_by_its_first_steps(harness: DryRunHarness) -> None:
    done = await harness.of(ProposedFiles(loads={"lazy": ProposedLoad()}), load_of(harness, "lazy", replicas=1))
    assert done.plan is not None
    assert [(each.kind, each.model, each.replica) for each in done.plan.actions] == [("start", "lazy", "lazy/0")]
    assert (done.ok, done.changes, harness.runtime.calls) == (True, [], ["preflight lazy"])
    assert harness.overrides == {}, "nothing is stated"
    replaced = await harness.of(
        ProposedFiles(loads={"chat": ProposedLoad()}), load_of(harness, "chat", params={"extra_args": ["-v"]})
    )
    assert replaced.plan is not None
    assert [(each.kind, each.replica) for each in replaced.plan.actions] == [("start", "chat/0")]


async def test_a_load_that_cannot_start_says_why_and_earlier_failures_do_not_delay_it(harness: DryRunHarness) -> None:
    load = load_of(harness, "lazy")
    key = ReplicaKey("lazy", 0, harness.desired().models["lazy"].spec_hash)
    harness.failures[key] = Failure(3, NOW - 1, "it broke", None)
    done = await harness.of(ProposedFiles(loads={"lazy": ProposedLoad()}), load)
    assert done.plan is not None
    assert [each.kind for each in done.plan.actions] == ["start"]
    harness.runtime.errors["lazy"] = "no such file"
    done = await harness.of(ProposedFiles(loads={"lazy": ProposedLoad()}), load)
    assert done.plan is not None
    assert done.plan.actions == []
    [blocked] = done.plan.blocked
    assert blocked.model == "lazy"
    assert "no such file" in blocked.reason


async def test_a_declaration_at_run_time_is_told_as_an_added_model(harness: DryRunHarness) -> None:
    done = await harness.of(ProposedFiles(models={"new": {"backend": "stub"}}))
    assert done.plan is not None
    assert [(each.model, each.change, each.effect) for each in done.changes] == [("new", "added", "start")]
    assert [(each.kind, each.replica) for each in done.plan.actions] == [("start", "new/0")]
    wrong = await harness.of(ProposedFiles(models={"new": {"backend": "stub", "replicas": 0}}))
    assert (wrong.ok, wrong.plan, [each.field for each in wrong.problems]) == (False, None, ["models.new.replicas"])
    with pytest.raises(RoundhouseError) as refused:
        await harness.of(ProposedFiles(models={"chat": {"backend": "stub"}}))
    assert refused.value.entry.code == "declared_in_files"
    assert harness.declarations == RuntimeDeclarations()


def test_a_dry_run_of_nothing_is_refused() -> None:
    with pytest.raises(ValidationError, match="must have `files`, `models` or `loads`"):
        ProposedFiles()
