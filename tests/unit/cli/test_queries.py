"""`status`, `plan`, `pause`, `resume` against a controller's interface, and where a controller is looked for."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from cli.output import ExitCode, time_words
from cli.status import ROW_NAMES, exit_code_of, status_as_json
from contract.admin import AdminModel
from contract.status import (
    ActionView,
    BlockedView,
    ControllerStatus,
    GpuStatus,
    ModelStatus,
    PlanView,
    Problem,
    ReplicaStatus,
    UnreadGpuStatus,
)
from controller.engines.llama_server import LlamaServerDefinition
from controller.model_status import assess_models
from controller.planning.plan import plan
from controller.state import (
    DesiredModel,
    DesiredState,
    Draining,
    Failure,
    Health,
    ObservedReplica,
    ObservedState,
    Phase,
    PreflightKey,
    PreflightResult,
    ReplicaId,
    ReplicaKey,
    Statement,
)
from tests.fakes.fake_control_api import FakeControlApi, model, status
from tests.support.cli import Cli, Output, Roundhouse
from tests.support.wait import until


@pytest.mark.parametrize(
    ("seen", "code"),
    [
        (status(model("a"), model("b", "unloaded", wanted=0)), ExitCode.DONE),
        (status(), ExitCode.DONE),
        (status(model("a"), model("b", "loading")), ExitCode.PENDING),
        (status(model("a", "unloading", wanted=0)), ExitCode.DONE),
        (status(observed_at=None), ExitCode.PENDING),
        (status(model("a", "loading"), model("b", "failed")), ExitCode.FAILED),
        (status(model("a", "failed", wanted=0)), ExitCode.DONE),
        (status(model("a"), desired_problems=[Problem(file="f", message="bad")]), ExitCode.FAILED),
        (status(model("a"), observation_error="docker does not answer"), ExitCode.FAILED),
    ],
)
def test_exit_code_of_a_status(seen: ControllerStatus, code: ExitCode) -> None:
    assert exit_code_of(seen) is code


async def test_status_is_a_table_without_colour_and_with_what_went_wrong(api: FakeControlApi, cli: Cli) -> None:
    failed: dict[str, Any] = {"last_error": "file missing: x.gguf [not markup]", "blocked": ["waits for a GPU"]}
    problem = Problem(file="desired-state/local.yaml", line=3, field="models.a.foo", message="unknown field")
    api.status = status(
        model("chat"),
        model("org/long-name:tag", "failed", **failed),
        paused=True,
        unsaved=["the newest events", "whether it is paused"],
        desired_problems=[problem],
        gpus=[GpuStatus(uuid="GPU-1", index=0, name="H200", total_mib=100, used_mib=40, claimed_mib=30)],
        unread_gpus=[UnreadGpuStatus(index=1, reason="lost", description="GPU 1 is left out: lost", claimed_mib=7)],
        gateways=[],
        refused_gateways=["gateway b is refused"],
    )
    assert await cli("status") == Output(
        ExitCode.FAILED,
        "MODEL              STATE   READY  BACKEND  BECAUSE\n"
        "chat               loaded  1/1    stub     enabled in the files\n"
        "org/long-name:tag  failed  0/1    stub     file missing: x.gguf [not markup]\n"
        "GPU 0 H200: 40 of 100 MiB used, 30 claimed\n"
        "GPU 1 is left out: lost; 7 MiB claimed\n"
        "paused: the controller observes and does not act; `roundhouse resume` ends it\n"
        "desired-state/local.yaml:3: models.a.foo: unknown field (what was last good rules)\n"
        "the state folder cannot be written; a restart would not know: the newest events, whether it is paused\n"
        "org/long-name:tag: file missing: x.gguf [not markup]\n"
        "org/long-name:tag: waits for a GPU\n"
        "no gateway is connected\n"
        "gateway b is refused\n",
    )


@pytest.mark.parametrize(
    ("error", "because"),
    [
        ("needs 9 MiB of main memory; free: 5 of the 8 MiB", "needs 9 MiB of main memory"),
        ("the engine ended with exit code 1. Last log lines:\nboom", "the engine ended with exit code 1"),
        ("x.gguf is missing", "x.gguf is missing"),
        (None, "enabled in the files"),
    ],
)
async def test_the_table_says_why_a_model_failed(
    api: FakeControlApi, cli: Cli, error: str | None, because: str
) -> None:
    api.status = status(model("a", "failed", last_error=error))
    assert (await cli("status")).lines[1].endswith(f"  stub     {because}")


async def test_status_shows_aliases_addresses_and_keys(api: FakeControlApi, cli: Cli) -> None:
    api.status = status(
        model("chat", aliases=["gpt-4o", "best"]),
        model("other"),
        gateway_addresses=["http://0.0.0.0:9000", "http://[::1]:9000"],
        keys=["alice", "ci"],
        expired_keys=["bob"],
    )
    assert await cli("status") == Output(
        ExitCode.DONE,
        "MODEL  ALIASES       STATE   READY  BACKEND  BECAUSE\n"
        "chat   gpt-4o, best  loaded  1/1    stub     enabled in the files\n"
        "other  -             loaded  1/1    stub     enabled in the files\n"
        "gateway: http://0.0.0.0:9000, http://[::1]:9000\n"
        "keys in force: alice, ci; expired: bob\n",
    )


AGAIN = model("a", "failed", last_error="no memory\nlast line", retry_at=5000.0)
TAKES_MORE = "`vram_mib` declares 6 MiB of each GPU, and a replica was seen to take 8"
APPLIED = "llama_server_n_ctx is declared as 8192, and rh-a-0 reports 4096"


@pytest.mark.parametrize(
    ("seen", "code", "lines"),
    [
        (
            status(AGAIN, model("b", last_error="the engine ended\nlast line")),
            ExitCode.FAILED,
            [
                "a: no memory",
                "last line",
                f"a: tried again at {time_words(5000.0)}; `roundhouse unload a` ends that",
                "b: serves; the last error: the engine ended | last line",
            ],
        ),
        (status(model("a", vram_warning=TAKES_MORE), model("b")), ExitCode.DONE, [f"a: {TAKES_MORE}"]),
        (status(model("a", drift=[APPLIED]), model("b")), ExitCode.DONE, [f"a: {APPLIED}"]),
        (
            status(model("a"), model("b"), observed_at=5000.0, observation_error="docker does\nnot answer"),
            ExitCode.FAILED,
            [f"what runs cannot be seen since {time_words(5000.0)}: docker does | not answer"],
        ),
        (
            status(model("a"), model("b"), gateway_addresses=["http://127.0.0.1:1"]),
            ExitCode.DONE,
            ["gateway: http://127.0.0.1:1", "no keys are declared"],
        ),
        (
            status(model("a"), model("b"), expired_keys=["bob"]),
            ExitCode.DONE,
            ["keys in force: none; expired: bob"],
        ),
        (status(model("a"), model("b")), ExitCode.DONE, []),
    ],
    ids=["next attempt", "vram_mib", "drift", "unseen", "no keys", "no valid key", "gateway without addresses"],
)
async def test_lines_of_status_below_the_table(
    api: FakeControlApi, cli: Cli, seen: ControllerStatus, code: ExitCode, lines: list[str]
) -> None:
    api.status = seen
    shown = await cli("status")
    assert (shown.code, shown.lines[3:]) == (code, lines)


async def test_status_as_json_has_the_names_of_admin_rows_beside_the_old_ones(api: FakeControlApi, cli: Cli) -> None:
    assert ControllerStatus.model_validate_json((await cli("status", "--json")).out) == api.status
    replica = ReplicaStatus(name="chat-0", index=0, attempt=1, phase="starting", spec_hash="x", outdated=False)
    api.status = status(model("chat", "loading", progress=0.5, replicas=[replica]))
    pending = await cli("status", "--json")
    assert pending.code == ExitCode.PENDING
    [shown] = pending.json["models"]
    assert (shown["state"], shown["backend"], shown["progress"]) == ("loading", "stub", 0.5)
    assert (shown["runtime_state"], shown["resolved_backend"], shown["load_progress"]) == ("loading", "stub", 0.5)
    assert shown["is_loaded"] is False
    assert shown["replica_details"] == shown["replicas"] == [replica.model_dump()]


def test_fields_of_a_models_status_are_fields_of_a_row() -> None:
    [shown] = status_as_json(status(model("chat")))["models"]
    assert set(shown) - set(AdminModel.model_fields) - set(ROW_NAMES) == {"plain_error", "wanted_replicas"}


async def test_status_waits_for_a_controller_and_for_its_models(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api = FakeControlApi(folder / "controller.sock")
    waiting = asyncio.create_task(Cli(capsys, "--controller", api.url)("status", "--wait", "--json"))
    async with api:
        api.status = status(model("chat", "loading"))
        await until("it was asked twice", lambda: len(api.requests) >= 2)
        assert not waiting.done()
        api.status = status(model("chat"))
        loaded = await waiting
    assert (loaded.code, loaded.json["models"][0]["state"]) == (ExitCode.DONE, "loaded")


async def test_status_says_at_once_that_it_waits_for_a_controller(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = await Cli(capsys, "--controller", f"unix:{folder}/none.sock")("status", "--wait", "--timeout", "1")
    assert shown.code == ExitCode.NO_CONTROLLER
    assert shown.err.count("waiting for it, 1 s at most") == 1


async def test_status_waits_no_longer_than_its_timeout_and_not_after_a_failure(api: FakeControlApi, cli: Cli) -> None:
    api.status = status(model("chat", "loading"))
    assert (await cli("status", "--wait", "--timeout", "0")).code == ExitCode.PENDING
    api.status = status(model("chat", "failed"), model("other", "loading"))
    assert (await cli("status", "--wait")).code == ExitCode.FAILED


async def test_plan_shows_what_it_would_do_and_what_is_blocked(api: FakeControlApi, cli: Cli) -> None:
    assert await cli("plan") == Output(ExitCode.DONE, "nothing to do: what runs is what is declared\n")
    big = BlockedView(model="big", index=1, reason="out of memory\n  last line")
    start = ActionView(kind="start", model="chat", replica="chat/0", reason="no replica at this index")
    blocked = [big, BlockedView(model="x", index=None, reason="r")]
    api.plan = PlanView(generation=3, paused=True, actions=[start], blocked=blocked)
    assert await cli("plan") == Output(
        ExitCode.PENDING,
        "paused: nothing of this is done until `roundhouse resume`\n"
        "ACTION  MODEL  REPLICA  REASON\n"
        "start   chat   chat/0   no replica at this index\n"
        "BLOCKED  REASON\n"
        "big/1    out of memory | last line\n"
        "x        r\n",
    )
    as_json = await cli("plan", "--json")
    assert (as_json.code, PlanView.model_validate_json(as_json.out)) == (ExitCode.PENDING, api.plan)
    api.plan = PlanView(generation=3, blocked=[big])
    assert (await cli("plan")).code == ExitCode.PENDING, "what is only blocked is not done"


async def test_a_refusal_is_in_the_controllers_words(api: FakeControlApi, cli: Cli) -> None:
    api.plan = None
    assert await cli("plan") == Output(
        ExitCode.FAILED,
        err="roundhouse: the controller refused: the controller has not made its first observation yet. "
        "Start the controller, or wait until it has made its first observation.\n",
    )


async def test_pause_and_resume(api: FakeControlApi, cli: Cli) -> None:
    assert await cli("pause") == Output(ExitCode.DONE, "paused: the controller observes and does not act\n")
    assert await cli("resume", "--json") == Output(ExitCode.DONE, '{\n  "paused": false\n}\n')
    assert api.requests == [("pause", {"paused": True}), ("pause", {"paused": False})]


ASKING = ("status", "plan", "pause", "resume", "load m", "unload m", "reset m", "logs m", "events -f", "top")


@pytest.mark.parametrize("line", ASKING)
def test_without_a_controller_it_is_one_line(
    folder: Path, line: str, roundhouse: Roundhouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROUNDHOUSE_CONTROLLER_URL", raising=False)
    words = (
        f"roundhouse: no controller answers at unix:{folder}/controller.sock (No such file or directory); "
        "`roundhouse up` starts one, or, if it runs with another state folder, name that: --state DIR or "
        "ROUNDHOUSE_STATE\n"
    )
    for option in ("--state", str(folder)), ("--controller", f"unix:{folder}/controller.sock"):
        assert roundhouse(*line.split(), *option) == Output(ExitCode.NO_CONTROLLER, err=words)


async def test_the_environment_says_where_the_controller_is(
    api: FakeControlApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROUNDHOUSE_CONTROLLER_URL", api.url)
    assert (await Cli(capsys)("status")).code == ExitCode.DONE


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (web.Response(text="hello"), "is no controller of this version"),
        (web.Response(text='{"a": 1}'), "is no controller of this version"),
        (web.Response(text="gone", status=502), "the controller refused: HTTP status 502"),
    ],
)
async def test_what_answers_is_no_controller(api: FakeControlApi, answer: web.Response, line: str, cli: Cli) -> None:
    api.raw = answer
    shown = await cli("status")
    assert (shown.code, shown.err.count("\n")) == (ExitCode.FAILED, 1)
    assert line in shown.err


@pytest.mark.parametrize("url", ["ftp://x", "state/controller.sock", "unix:", "http://"])
def test_an_address_that_is_none(url: str, roundhouse: Roundhouse) -> None:
    line = f"roundhouse: a controller's address is unix:PATH or http://HOST:PORT, not {url}\n"
    assert roundhouse("status", "--controller", url) == Output(ExitCode.USAGE, err=line)


# Edits that wait, as a real plan has them.

NOW = 1_000.0
MISSING = "model_path: gone.gguf is missing from /models"
DEFINITION = LlamaServerDefinition(model_path="gone.gguf")
CHAT = DesiredModel("chat", DEFINITION, "llama_server", "new", 2, Statement("file", 5.0, "enabled"))
LOADED = replace(CHAT, statement=Statement("load", 5.0, "loaded by operator"))
REFUSED = {PreflightKey("chat", "new"): PreflightResult(False, NOW - 10, MISSING)}


def _serving(index: int, spec_hash: str = "old") -> ObservedReplica:
    return ObservedReplica(
        ReplicaId("chat", index, spec_hash), f"chat-{spec_hash}-{index}", Phase.RUNNING, NOW - 90, NOW - 90,
        Health.READY, NOW - 80, "http://127.0.0.1:9000",
    )  # fmt: skip


OLD, NEW = ((_serving(0, spec_hash), _serving(1, spec_hash)) for spec_hash in ("old", "new"))
LEAVING = replace(OLD[1], draining=Draining(NOW - 1, idle=False))


def _assess(*replicas: ObservedReplica, model: DesiredModel = CHAT, **observed: Any) -> ModelStatus:
    """The status of `chat` as the controller comes to it, once it was loaded."""
    desired = DesiredState(1, {"chat": model})
    state = replace(ObservedState(NOW, replicas, loaded_once=frozenset({"chat"})), **observed)
    [assessed] = assess_models(desired, state, plan(desired, state, NOW))
    return assessed


def _failed(index: int, message: str, retry_at: float | None) -> dict[ReplicaKey, Failure]:
    return {ReplicaKey("chat", index, "new"): Failure(3, NOW - 1, message, retry_at)}


RETRY = f"chat: tried again at {time_words(NOW + 20)}"


@pytest.mark.parametrize(
    ("assessed", "lines"),
    [
        (
            _assess(*OLD, model=LOADED, preflights=REFUSED),
            [
                f"chat: serves the old definition; the load or the edit waits: {MISSING}",
                f"{RETRY}; `roundhouse reset chat` or another edit ends that",
            ],
        ),
        (
            _assess(*OLD, preflights=REFUSED),
            [f"chat: serves the old definition; the edit waits: {MISSING}", f"{RETRY}; another edit ends that"],
        ),
        (
            _assess(NEW[0], OLD[1], preflights=REFUSED),
            [
                f"chat: 1 of 2 replicas serves the old definition; the edit waits: {MISSING}",
                f"{RETRY}; another edit ends that",
            ],
        ),
        (
            _assess(*OLD, failures=_failed(0, "bad argument\nlast line", None)),
            ["chat: serves the old definition; the edit waits: bad argument | last line"],
        ),
        (
            _assess(NEW[0], failures=_failed(1, "the engine ended", NOW + 7)),
            [
                "chat: 1 of 2 replicas serves; what keeps the rest: the engine ended",
                f"chat: tried again at {time_words(NOW + 7)}",
            ],
        ),
        (_assess(preflights=REFUSED), [f"chat: {MISSING}", f"{RETRY}; `roundhouse unload chat` ends that"]),
    ],
    ids=["a load", "an edit", "applied in part", "parked", "one of two serves", "nothing serves"],
)
async def test_what_status_says_of_an_edit_that_waits(
    api: FakeControlApi, cli: Cli, assessed: ModelStatus, lines: list[str]
) -> None:
    api.status = status(assessed)
    assert (await cli("status")).lines[2:] == lines


@pytest.mark.parametrize(
    ("assessed", "code"),
    [
        (_assess(*OLD, preflights=REFUSED), ExitCode.PENDING),
        (_assess(*OLD, preflights={}), ExitCode.PENDING),  # not looked at yet
        (_assess(NEW[0], OLD[1], preflights=REFUSED), ExitCode.PENDING),
        (_assess(NEW[0], preflights=REFUSED), ExitCode.PENDING),  # one replica more than before
        (_assess(*NEW), ExitCode.DONE),
        (_assess(*NEW, LEAVING), ExitCode.DONE),
        (_assess(OLD[0], model=replace(CHAT, replicas=0)), ExitCode.DONE),
    ],
)
def test_an_edit_that_is_not_applied_is_not_done(assessed: ModelStatus, code: ExitCode) -> None:
    assert exit_code_of(status(assessed)) is code


async def test_nobody_waits_for_an_edit_that_cannot_be_applied(api: FakeControlApi, cli: Cli) -> None:
    api.status = status(_assess(*OLD, preflights=REFUSED))
    assert (await cli("status", "--wait")).code == ExitCode.PENDING
    assert len(api.requests) == 1


WAITS = _assess(*OLD, preflights=REFUSED)


@pytest.mark.parametrize(
    ("first", "then", "code"),
    [
        ([_assess(*OLD, preflights={})], [_assess(*NEW)], ExitCode.DONE),
        ([WAITS, model("other", "loading")], [WAITS, model("other")], ExitCode.PENDING),
    ],
    ids=["an edit that is being applied", "a load beside an edit that cannot be applied"],
)
async def test_what_is_under_way_is_waited_for(
    api: FakeControlApi, cli: Cli, first: list[ModelStatus], then: list[ModelStatus], code: ExitCode
) -> None:
    api.status = status(*first)
    waiting = asyncio.create_task(cli("status", "--wait"))
    await until("it was asked twice", lambda: len(api.requests) >= 2)
    assert not waiting.done()
    api.status = status(*then)
    assert (await waiting).code == code
