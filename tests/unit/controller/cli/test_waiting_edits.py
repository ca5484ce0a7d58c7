"""What `status` says of an edit that cannot be applied while the old definition serves, from a real plan."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controller.cli.exit_codes import ExitCode
from controller.cli.output import time_words
from controller.cli.status import exit_code_of
from controller.engines.llama_server import LlamaServerDefinition
from controller.planning.plan import plan
from controller.schema.status import ModelStatus
from controller.state import (
    DesiredModel,
    DesiredState,
    Draining,
    Failure,
    Health,
    ObservedReplica,
    ObservedState,
    Phase,
    PreflightResult,
    ReplicaId,
    ReplicaKey,
    Statement,
)
from controller.status.model_status import assess_models
from tests.fakes.fake_control_api import FakeControlApi, status
from tests.fakes.fake_control_api import model as fake_model
from tests.support.cli import roundhouse
from tests.support.wait import until

NOW = 1_000.0
MISSING = "model_path: gone.gguf is missing from /models"
CHAT = DesiredModel(
    "chat", LlamaServerDefinition(model_path="gone.gguf"), "llama_server", "new", 2, Statement("file", 5.0, "enabled")
)
REFUSED = {("chat", "new"): PreflightResult(False, NOW - 10, MISSING)}


@pytest.fixture
async def api(folder: Path) -> AsyncIterator[FakeControlApi]:
    async with FakeControlApi(folder / "controller.sock") as fake:
        yield fake


def _serving(index: int, spec_hash: str = "old") -> ObservedReplica:
    return ObservedReplica(
        ReplicaId("chat", index, spec_hash), f"chat-{spec_hash}-{index}", Phase.RUNNING, NOW - 90, NOW - 90,
        Health.READY, NOW - 80, "http://127.0.0.1:9000",
    )  # fmt: skip


def _leaving(index: int) -> ObservedReplica:
    return replace(_serving(index), draining=Draining(NOW - 1, idle=False))


def _assess(*replicas: ObservedReplica, model: DesiredModel = CHAT, **observed: Any) -> ModelStatus:
    """The status of `chat` as the controller comes to it, once it was loaded."""
    desired = DesiredState(1, {"chat": model})
    state = replace(ObservedState(NOW, replicas, loaded_once=frozenset({"chat"})), **observed)
    [assessed] = assess_models(desired, state, plan(desired, state, NOW))
    return assessed


async def _notes(api: FakeControlApi, model: ModelStatus, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines of `status` below the table."""
    api.status = status(model)
    await roundhouse(api, "status")
    return capsys.readouterr().out.splitlines()[2:]


async def test_a_load_that_cannot_be_applied_is_taken_back_by_reset(
    api: FakeControlApi, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = replace(CHAT, statement=Statement("load", 5.0, "loaded by operator"))
    notes = await _notes(api, _assess(_serving(0), _serving(1), model=loaded, preflights=REFUSED), capsys)
    assert notes[0] == f"chat: serves the old definition; the load or the edit waits: {MISSING}"
    assert notes[1].endswith("; `roundhouse reset chat` or another edit ends that")


async def test_an_edit_that_cannot_be_applied_waits_and_nobody_is_advised_to_unload_what_serves(
    api: FakeControlApi, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await _notes(api, _assess(_serving(0), _serving(1), preflights=REFUSED), capsys) == [
        f"chat: serves the old definition; the edit waits: {MISSING}",
        f"chat: tried again at {time_words(NOW + 20)}; another edit ends that",
    ]


async def test_an_edit_that_is_applied_in_part_says_how_far(
    api: FakeControlApi, capsys: pytest.CaptureFixture[str]
) -> None:
    replicas = (_serving(0, "new"), _serving(1))
    assert (await _notes(api, _assess(*replicas, preflights=REFUSED), capsys))[:1] == [
        f"chat: 1 of 2 replicas serves the old definition; the edit waits: {MISSING}"
    ]


async def test_a_parked_edit_is_not_tried_again(api: FakeControlApi, capsys: pytest.CaptureFixture[str]) -> None:
    parked = {ReplicaKey("chat", 0, "new"): Failure(1, NOW - 5, "bad argument\nlast line", None)}
    assert await _notes(api, _assess(_serving(0), _serving(1), failures=parked), capsys) == [
        "chat: serves the old definition; the edit waits: bad argument | last line"
    ]


async def test_of_a_replica_that_failed_beside_one_that_serves_it_is_told_that_one_serves(
    api: FakeControlApi, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = {ReplicaKey("chat", 1, "new"): Failure(3, NOW - 1, "the engine ended", NOW + 7)}
    assert await _notes(api, _assess(_serving(0, "new"), failures=failed), capsys) == [
        "chat: 1 of 2 replicas serves; what keeps the rest: the engine ended",
        f"chat: tried again at {time_words(NOW + 7)}",
    ]


async def test_what_does_not_serve_may_be_ended_by_an_unload(
    api: FakeControlApi, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await _notes(api, _assess(preflights=REFUSED), capsys) == [
        f"chat: {MISSING}",
        f"chat: tried again at {time_words(NOW + 20)}; `roundhouse unload chat` ends that",
    ]


@pytest.mark.parametrize(
    ("model", "code"),
    [
        (_assess(_serving(0), _serving(1), preflights=REFUSED), ExitCode.PENDING),
        (_assess(_serving(0), _serving(1), preflights={}), ExitCode.PENDING),  # not looked at yet
        (_assess(_serving(0, "new"), _serving(1), preflights=REFUSED), ExitCode.PENDING),
        (_assess(_serving(0, "new"), preflights=REFUSED), ExitCode.PENDING),  # one replica more than before
        (_assess(_serving(0, "new"), _serving(1, "new")), ExitCode.DONE),
        (_assess(_serving(0, "new"), _serving(1, "new"), _leaving(1)), ExitCode.DONE),
        (_assess(_serving(0), model=replace(CHAT, replicas=0)), ExitCode.DONE),
    ],
)
def test_an_edit_that_is_not_applied_is_not_done(model: ModelStatus, code: ExitCode) -> None:
    assert exit_code_of(status(model)) is code


async def test_nobody_waits_for_an_edit_that_cannot_be_applied(api: FakeControlApi) -> None:
    api.status = status(_assess(_serving(0), _serving(1), preflights=REFUSED))
    assert await roundhouse(api, "status", "--wait") == ExitCode.PENDING
    assert len(api.requests) == 1


async def test_an_edit_that_is_being_applied_is_waited_for(api: FakeControlApi) -> None:
    api.status = status(_assess(_serving(0), _serving(1), preflights={}))
    waiting = asyncio.create_task(roundhouse(api, "status", "--wait"))
    await until("it was asked twice", lambda: len(api.requests) >= 2)
    assert not waiting.done()
    api.status = status(_assess(_serving(0, "new"), _serving(1, "new")))
    assert await waiting == ExitCode.DONE


async def test_what_loads_is_waited_for_beside_an_edit_that_cannot_be_applied(api: FakeControlApi) -> None:
    waits = _assess(_serving(0), _serving(1), preflights=REFUSED)
    api.status = status(waits, fake_model("other", "loading"))
    waiting = asyncio.create_task(roundhouse(api, "status", "--wait"))
    await until("it was asked twice", lambda: len(api.requests) >= 2)
    assert not waiting.done()
    api.status = status(waits, fake_model("other"))
    assert await waiting == ExitCode.PENDING
