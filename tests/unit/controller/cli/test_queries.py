"""`status`, `plan`, `pause`, `resume` against a controller's interface on a real unix socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from controller.cli.app import run
from controller.cli.exit_codes import ExitCode
from controller.cli.output import time_words
from controller.cli.status import ROW_NAMES, exit_code_of, status_as_json
from controller.schema.admin import AdminModel
from controller.schema.status import (
    ActionView,
    BlockedView,
    ControllerStatus,
    GpuStatus,
    PlanView,
    Problem,
    ReplicaStatus,
    UnreadGpuStatus,
)
from tests.fakes.fake_control_api import FakeControlApi, model, status
from tests.support.wait import until


@pytest.fixture
async def api(folder: Path) -> AsyncIterator[FakeControlApi]:
    async with FakeControlApi(folder / "controller.sock") as fake:
        yield fake


async def roundhouse(api: FakeControlApi, *arguments: str) -> int:
    return await asyncio.to_thread(run, [*arguments, "--controller", api.url])


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
def test_what_a_status_comes_to(seen: ControllerStatus, code: ExitCode) -> None:
    assert exit_code_of(seen) is code


async def test_status_is_a_table_without_colour_and_with_what_went_wrong(
    api: FakeControlApi, capsys: pytest.CaptureFixture[str]
) -> None:
    api.status = status(
        model("chat"),
        model(
            "org/long-name:tag", "failed", last_error="file missing: x.gguf [not markup]", blocked=["waits for a GPU"]
        ),
        paused=True,
        unsaved=["the newest events", "whether it is paused"],
        desired_problems=[
            Problem(file="desired-state/local.yaml", line=3, field="models.a.foo", message="unknown field")
        ],
        gpus=[GpuStatus(uuid="GPU-1", index=0, name="H200", total_mib=100, used_mib=40, claimed_mib=30)],
        unread_gpus=[UnreadGpuStatus(index=1, reason="lost", description="GPU 1 is left out: lost", claimed_mib=7)],
        gateways=[],
        refused_gateways=["gateway b is refused"],
    )
    assert await roundhouse(api, "status") == ExitCode.FAILED
    out = capsys.readouterr().out
    assert out == (
        "MODEL              STATE   READY  BACKEND  BECAUSE\n"
        "chat               loaded  1/1    stub     enabled in the files\n"
        "org/long-name:tag  failed  0/1    stub     enabled in the files\n"
        "GPU 0 H200: 40 of 100 MiB used, 30 claimed\n"
        "GPU 1 is left out: lost; 7 MiB claimed\n"
        "paused: the controller observes and does not act; `roundhouse resume` ends it\n"
        "desired-state/local.yaml:3: models.a.foo: unknown field (what was last good rules)\n"
        "the state folder cannot be written; a restart would not know: the newest events, whether it is paused\n"
        "org/long-name:tag: file missing: x.gguf [not markup]\n"
        "org/long-name:tag: waits for a GPU\n"
        "no gateway is connected\n"
        "gateway b is refused\n"
    )


async def test_status_tells_a_next_attempt_and_an_error_of_what_serves(
    api: FakeControlApi, capsys: pytest.CaptureFixture[str]
) -> None:
    again = model("a", "failed", last_error="no memory\nlast line", retry_at=5000.0)
    api.status = status(again, model("b", last_error="the engine ended\nlast line"))
    assert await roundhouse(api, "status") == ExitCode.FAILED
    assert capsys.readouterr().out.splitlines()[3:] == [
        "a: no memory",
        "last line",
        f"a: tried again at {time_words(5000.0)}; `roundhouse unload a` ends that",
        "b: serves; the last error: the engine ended | last line",
    ]


async def test_status_tells_where_vram_mib_is_not_what_is_taken(
    api: FakeControlApi, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "`vram_mib` declares 6 MiB of each GPU, and a replica was seen to take 8"
    api.status = status(model("a", vram_warning=words), model("b"))
    assert await roundhouse(api, "status") == ExitCode.DONE
    assert f"a: {words}\n" in capsys.readouterr().out


async def test_status_tells_what_an_engine_applied_otherwise(
    api: FakeControlApi, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "llama_server_n_ctx is declared as 8192, and rh-a-0 reports 4096"
    api.status = status(model("a", drift=[words]), model("b"))
    assert await roundhouse(api, "status") == ExitCode.DONE, "it serves"
    assert f"a: {words}\n" in capsys.readouterr().out


async def test_status_tells_since_when_nothing_is_seen(api: FakeControlApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.status = status(observed_at=5000.0, observation_error="docker does\nnot answer")
    assert await roundhouse(api, "status") == ExitCode.FAILED
    assert f"what runs cannot be seen since {time_words(5000.0)}: docker does | not answer\n" in capsys.readouterr().out


async def test_status_tells_aliases_addresses_and_keys(api: FakeControlApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.status = status(
        model("chat", aliases=["gpt-4o", "best"]),
        model("other"),
        gateway_addresses=["http://0.0.0.0:9000", "http://[::1]:9000"],
        keys=["alice", "ci"],
        expired_keys=["bob"],
    )
    assert await roundhouse(api, "status") == ExitCode.DONE
    assert capsys.readouterr().out == (
        "MODEL  ALIASES       STATE   READY  BACKEND  BECAUSE\n"
        "chat   gpt-4o, best  loaded  1/1    stub     enabled in the files\n"
        "other  -             loaded  1/1    stub     enabled in the files\n"
        "gateway: http://0.0.0.0:9000, http://[::1]:9000\n"
        "keys in force: alice, ci; expired: bob\n"
    )


@pytest.mark.parametrize(
    ("access", "lines"),
    [
        ({"gateway_addresses": ["http://127.0.0.1:1"]}, ["gateway: http://127.0.0.1:1", "no keys are declared"]),
        ({"expired_keys": ["bob"]}, ["keys in force: none; expired: bob"]),
        ({}, []),  # an older gateway says no address
    ],
)
async def test_status_tells_who_may_come_in(
    api: FakeControlApi, capsys: pytest.CaptureFixture[str], access: dict[str, list[str]], lines: list[str]
) -> None:
    api.status = status(model("chat"), **access)
    assert await roundhouse(api, "status") == ExitCode.DONE
    assert capsys.readouterr().out.splitlines()[2:] == lines


async def test_status_as_json_has_the_names_of_admin_rows_beside_the_old_ones(
    api: FakeControlApi, capsys: pytest.CaptureFixture[str]
) -> None:
    replica = ReplicaStatus(name="chat-0", index=0, attempt=1, phase="starting", spec_hash="x", outdated=False)
    api.status = status(model("chat", "loading", progress=0.5, replicas=[replica]))
    assert await roundhouse(api, "status", "--json") == ExitCode.PENDING
    [shown] = json.loads(capsys.readouterr().out)["models"]
    assert (shown["state"], shown["backend"], shown["progress"]) == ("loading", "stub", 0.5)
    assert (shown["runtime_state"], shown["resolved_backend"], shown["load_progress"]) == ("loading", "stub", 0.5)
    assert shown["is_loaded"] is False
    assert shown["replica_details"] == shown["replicas"] == [replica.model_dump()]


def test_what_the_status_of_a_model_has_without_a_name_of_its_own_is_a_field_of_a_row() -> None:
    [shown] = status_as_json(status(model("chat")))["models"]
    deprecated = set(ROW_NAMES)
    assert set(shown) - set(AdminModel.model_fields) - deprecated == {"plain_error", "wanted_replicas"}


async def test_status_as_json_is_the_controllers_own(api: FakeControlApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert await roundhouse(api, "status", "--json") == ExitCode.DONE
    assert ControllerStatus.model_validate_json(capsys.readouterr().out) == api.status


async def test_status_waits_for_a_controller_and_for_its_models(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api = FakeControlApi(folder / "controller.sock")
    waiting = asyncio.create_task(roundhouse(api, "status", "--wait", "--json"))
    async with api:
        api.status = status(model("chat", "loading"))
        await until("it was asked twice", lambda: len(api.requests) >= 2)
        assert not waiting.done()
        api.status = status(model("chat"))
        assert await waiting == ExitCode.DONE
    assert json.loads(capsys.readouterr().out)["models"][0]["state"] == "loaded"


async def test_status_waits_no_longer_than_it_was_told(api: FakeControlApi) -> None:
    api.status = status(model("chat", "loading"))
    assert await roundhouse(api, "status", "--wait", "--timeout", "0") == ExitCode.PENDING


async def test_status_stops_waiting_when_a_model_failed(api: FakeControlApi) -> None:
    api.status = status(model("chat", "failed"), model("other", "loading"))
    assert await roundhouse(api, "status", "--wait") == ExitCode.FAILED


async def test_plan_with_nothing_to_do(api: FakeControlApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert await roundhouse(api, "plan") == ExitCode.DONE
    assert capsys.readouterr().out == "nothing to do: what runs is what is declared\n"


async def test_plan_with_actions_and_what_is_blocked(api: FakeControlApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.plan = PlanView(
        generation=3,
        paused=True,
        actions=[ActionView(kind="start", model="chat", replica="chat/0", reason="no replica at this index")],
        blocked=[
            BlockedView(model="big", index=1, reason="out of memory\n  last line"),
            BlockedView(model="x", index=None, reason="r"),
        ],
    )
    assert await roundhouse(api, "plan") == ExitCode.PENDING
    assert capsys.readouterr().out == (
        "paused: nothing of this is done until `roundhouse resume`\n"
        "ACTION  MODEL  REPLICA  REASON\n"
        "start   chat   chat/0   no replica at this index\n"
        "BLOCKED  REASON\n"
        "big/1    out of memory | last line\n"
        "x        r\n"
    )
    assert await roundhouse(api, "plan", "--json") == ExitCode.PENDING
    assert PlanView.model_validate_json(capsys.readouterr().out) == api.plan


async def test_what_is_only_blocked_is_not_done(api: FakeControlApi) -> None:
    api.plan = PlanView(generation=3, blocked=[BlockedView(model="big", index=0, reason="no GPU")])
    assert await roundhouse(api, "plan") == ExitCode.PENDING


async def test_a_refusal_is_told_in_the_controllers_words(
    api: FakeControlApi, capsys: pytest.CaptureFixture[str]
) -> None:
    api.plan = None
    assert await roundhouse(api, "plan") == ExitCode.FAILED
    assert capsys.readouterr().err == (
        "roundhouse: the controller refused: the controller has not made its first observation yet. "
        "Start the controller, or wait until it has made its first observation.\n"
    )


async def test_pause_and_resume(api: FakeControlApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert await roundhouse(api, "pause") == ExitCode.DONE
    assert await roundhouse(api, "resume", "--json") == ExitCode.DONE
    assert api.requests == [("pause", {"paused": True}), ("pause", {"paused": False})]
    assert capsys.readouterr().out == 'paused: the controller observes and does not act\n{\n  "paused": false\n}\n'


@pytest.mark.parametrize("command", ["status", "plan", "pause", "resume"])
async def test_without_a_controller_it_is_one_line(
    folder: Path, command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROUNDHOUSE_CONTROLLER_URL", raising=False)
    assert await asyncio.to_thread(run, [command, "--state", str(folder)]) == ExitCode.NO_CONTROLLER
    assert capsys.readouterr() == (
        "",
        f"roundhouse: no controller answers at unix:{folder}/controller.sock (No such file or directory); "
        "`roundhouse up` starts one\n",
    )


async def test_the_environment_says_where_the_controller_is(
    api: FakeControlApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROUNDHOUSE_CONTROLLER_URL", api.url)
    assert await asyncio.to_thread(run, ["status"]) == ExitCode.DONE


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (web.Response(text="hello"), "is no controller of this version"),
        (web.Response(text='{"a": 1}'), "is no controller of this version"),
        (web.Response(text="gone", status=502), "the controller refused: HTTP status 502"),
    ],
)
async def test_what_answers_is_no_controller(
    api: FakeControlApi, answer: web.Response, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    api.raw = answer
    assert await roundhouse(api, "status") == ExitCode.FAILED
    err = capsys.readouterr().err
    assert line in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("url", ["ftp://x", "state/controller.sock", "unix:", "http://"])
async def test_an_address_that_is_none(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert await asyncio.to_thread(run, ["status", "--controller", url]) == ExitCode.USAGE
    assert capsys.readouterr().err == (
        f"roundhouse: a controller's address is unix:PATH or http://HOST:PORT, not {url}\n"
    )
