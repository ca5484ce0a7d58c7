"""`load`, `unload` and `reset` against the admin API on a real unix socket."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from controller.cli.exit_codes import ExitCode
from controller.cli.load import failure_lines
from controller.cli.output import clock_words
from controller.cli.transition import ProgressBar, progress_bar_of
from controller.schema.admin import AdminModel, HeldBy
from controller.schema.errors import RoundhouseError
from controller.schema.status import ReplicaStatus
from tests.fakes.fake_control_api import FakeControlApi, row
from tests.support.cli import Terminal, roundhouse, started
from tests.support.wait import until


@pytest.fixture
async def api(folder: Path) -> AsyncIterator[FakeControlApi]:
    async with FakeControlApi(folder / "controller.sock") as fake:
        yield fake


def question(api: FakeControlApi, verb: str) -> Any:
    return next(asked for what, asked in api.requests if what == verb)


async def test_a_load_with_values(api: FakeControlApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.go.set()
    arguments = ("--set", "gguf_n_ctx=8192", "--set", "gguf_flash_attn=on", "--set", "gguf_type_k=null")
    assert await roundhouse(api, "load", "chat", *arguments, "--replicas", "2", "--timeout", "7") == ExitCode.DONE
    assert question(api, "load") == {
        "name": "chat",
        "wait": "true",
        "timeout_s": "7",
        "body": {"gguf_n_ctx": 8192, "gguf_flash_attn": "on", "gguf_type_k": None, "replicas": 2},
    }
    assert capsys.readouterr() == ("chat: loaded, 1 of 1 replica ready\n", "")


def _replica(index: int, *, outdated: bool = False) -> ReplicaStatus:
    return ReplicaStatus(
        name=f"chat-{index}-{'old' if outdated else 'new'}",
        index=index,
        attempt=1,
        phase="ready",
        spec_hash="a" if outdated else "b",
        outdated=outdated,
    )


OLD_AND_NEW = [_replica(0), _replica(1, outdated=True)]


async def test_a_restart_is_done_once_every_replica_has_the_new_values(
    api: FakeControlApi, capsys: pytest.CaptureFixture[str]
) -> None:
    api.go.set()
    api.rows = [row("chat", replicas=2, loaded_replicas=2, replica_details=[_replica(0), _replica(1)])]
    assert await roundhouse(api, "load", "chat", "--set", "gguf_n_ctx=8192", "--restart") == ExitCode.DONE
    assert question(api, "load") == {
        "name": "chat",
        "wait": "true",
        "timeout_s": "600",
        "restart": "true",
        "body": {"gguf_n_ctx": 8192},
    }
    assert capsys.readouterr() == ("chat: loaded, 2 of 2 replicas ready\n", "")
    api.unfinished = True
    api.rows = [row("chat", replicas=2, loaded_replicas=2, replica_details=OLD_AND_NEW)]
    assert await roundhouse(api, "load", "chat", "--restart") == ExitCode.PENDING
    assert capsys.readouterr().out == "chat: restarting, it serves meanwhile, 1 of 2 replicas has the new values\n"


async def test_a_restart_that_failed_says_that_the_model_serves_and_how_it_is_taken_back(
    api: FakeControlApi, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = "no memory"
    api.rows = [
        row("chat", replicas=2, loaded_replicas=2, replica_details=OLD_AND_NEW, last_error=reason, blocked=[reason])
    ]
    api.refusal = RoundhouseError("model_failed", reason)
    assert await roundhouse(api, "load", "chat", "--restart") == ExitCode.FAILED
    words = "chat serves with the values of before, the new ones failed: no memory; `roundhouse reset chat` ends that"
    assert capsys.readouterr().err == f"roundhouse: {words}\n"


async def test_a_restart_outlasts_its_connection(api: FakeControlApi) -> None:
    api.break_waits = True
    api.rows = [row("chat", replicas=2, loaded_replicas=2, replica_details=OLD_AND_NEW)]
    loading = asyncio.create_task(roundhouse(api, "load", "chat", "--restart"))
    await until("it asks for the row twice", lambda: api.requests.count(("model", "chat")) >= 2)
    assert not loading.done()
    api.rows = [row("chat", replicas=2, loaded_replicas=2, replica_details=[_replica(0), _replica(1)])]
    assert await loading == ExitCode.DONE


async def test_a_load_as_json_is_the_row(api: FakeControlApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.go.set()
    assert await roundhouse(api, "load", "chat", "--json") == ExitCode.DONE
    assert AdminModel.model_validate_json(capsys.readouterr().out) == api.rows[0]


async def test_a_name_may_hold_anything_that_a_name_may(api: FakeControlApi) -> None:
    api.rows = [row("org/long-name:8b@v1+x")]
    api.go.set()
    assert await roundhouse(api, "load", "org/long-name:8b@v1+x") == ExitCode.DONE
    assert await roundhouse(api, "load", "a b?c#d") == ExitCode.FAILED
    assert [asked["name"] for what, asked in api.requests if what == "load"] == ["org/long-name:8b@v1+x", "a b?c#d"]


@pytest.mark.parametrize("arguments", [["--no-wait"], ["--timeout", "0"]])
async def test_a_load_that_is_not_waited_for(
    api: FakeControlApi, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    api.rows = [row("chat", "loading", blocked=["waits for a GPU\nsecond line"])]
    assert await roundhouse(api, "load", "chat", *arguments) == ExitCode.PENDING
    assert question(api, "load") == {"name": "chat", "wait": "false", "body": {}}
    assert capsys.readouterr().out == (
        "chat: still loading, 0 of 1 replica ready\nchat: waits for a GPU | second line\n"
    )


async def test_a_load_that_takes_longer_than_it_may(api: FakeControlApi) -> None:
    api.rows = [row("chat", "loading")]
    assert await roundhouse(api, "load", "chat", "--timeout", "0.05") == ExitCode.PENDING
    assert question(api, "load")["wait"] == "true"


async def test_a_failed_load_tells_why(api: FakeControlApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.rows = [row("chat", "failed", last_error="the file is missing: x.gguf\nlast line of its log")]
    api.go.set()
    assert await roundhouse(api, "load", "chat", "--json") == ExitCode.FAILED
    out, err = capsys.readouterr()
    assert err == "roundhouse: chat failed: the file is missing: x.gguf\nlast line of its log\n"
    assert json.loads(out)["runtime_state"] == "failed"


@pytest.mark.parametrize(
    ("seen", "lines"),
    [
        (
            row("a", "failed", last_error="no memory.", retry_at=5000.0, blocked=["no memory.", "waits\nlong"]),
            [
                f"a failed: no memory; tried again at {clock_words(5000.0)} (`roundhouse unload a` ends that)",
                "a: waits | long",
            ],
        ),
        (
            row("a", "failed", last_error="it ended. Last log lines:\nlast", retry_at=5000.0),
            [
                "a failed: it ended. Last log lines:\nlast",
                f"a: tried again at {clock_words(5000.0)} (`roundhouse unload a` ends that)",
            ],
        ),
        (
            row("a", "loading", last_error="no memory"),
            ["a failed: no memory; it is tried again now (`roundhouse unload a` ends that)"],
        ),
        (row("a", "failed"), ["a failed: no reason is known"]),
    ],
)
def test_what_is_said_of_a_failed_load(seen: AdminModel, lines: list[str]) -> None:
    assert list(failure_lines(seen)) == lines


async def test_a_failed_load_that_is_tried_again(api: FakeControlApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.rows = [row("chat", "failed", last_error="no memory", retry_at=5000.0)]
    api.go.set()
    assert await roundhouse(api, "load", "chat") == ExitCode.FAILED
    again = f"tried again at {clock_words(5000.0)} (`roundhouse unload chat` ends that)"
    assert capsys.readouterr() == ("", f"roundhouse: chat failed: no memory; {again}\n")
    assert ("model", "chat") in api.requests


async def test_a_load_whose_next_attempt_succeeded_is_done(
    api: FakeControlApi, capsys: pytest.CaptureFixture[str]
) -> None:
    api.refusal = RoundhouseError("model_failed", "no memory")
    assert await roundhouse(api, "load", "chat") == ExitCode.DONE
    assert capsys.readouterr() == ("chat: loaded, 1 of 1 replica ready\n", "")


@pytest.mark.parametrize(
    ("verb", "state", "words"),
    [
        ("load", "unloaded", "chat: not loaded yet, now unloaded, 0 of 1 replica ready"),
        ("unload", "loaded", "chat: not unloaded yet, now loaded"),
        ("unload", "unloading", "chat: still unloading"),
    ],
)
async def test_what_is_not_done_tells_what_it_waits_for(
    api: FakeControlApi, verb: str, state: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    api.rows = [row("chat", state, blocked=["the controller is paused\nsecond"])]
    assert await roundhouse(api, verb, "chat", "--timeout", "0.05") == ExitCode.PENDING
    assert capsys.readouterr().out == f"{words}\nchat: the controller is paused | second\n"


@pytest.mark.parametrize(
    "arguments",
    [["load", ""], ["unload", " "], ["reset", ""], ["logs", ""], ["history", ""], ["events", "--model", ""]],
)
async def test_a_name_is_not_empty(
    api: FakeControlApi, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert await roundhouse(api, *arguments) == ExitCode.USAGE
    err = capsys.readouterr().err
    assert "a model's name is not empty" in err
    assert err.count("\n") == 1
    assert api.requests == []


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            RoundhouseError("invalid_load_request", "`gguf_n_ctx` must be at least 1.", param="gguf_n_ctx"),
            "`gguf_n_ctx` must be at least 1.",
        ),
        (
            RoundhouseError("schema_violation", "must be a number", param="gguf_n_ctx"),
            "`gguf_n_ctx`: must be a number",
        ),
        (
            RoundhouseError("state_conflict", "it is\nbeing unloaded"),
            "it is | being unloaded. `roundhouse status` shows the state; wait until the transition has ended.",
        ),
    ],
)
async def test_a_refusal_names_the_field_and_the_way_out(
    api: FakeControlApi, error: RoundhouseError, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    api.refusal = error
    assert await roundhouse(api, "load", "chat") == ExitCode.FAILED
    assert capsys.readouterr() == ("", f"roundhouse: the controller refused: {line}\n")


async def test_replicas_are_said_once(api: FakeControlApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert await roundhouse(api, "load", "chat", "--replicas", "2", "--set", "replicas=3") == ExitCode.USAGE
    assert capsys.readouterr().err == "roundhouse: --replicas and --set replicas: say it once\n"
    assert api.requests == []


async def test_a_load_outlasts_its_connection(api: FakeControlApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.break_waits = True
    api.rows = [row("chat", "loading")]
    loading = asyncio.create_task(roundhouse(api, "load", "chat"))
    await until("it asks for the row", lambda: ("model", "chat") in api.requests)
    api.rows = [row("chat")]
    assert await loading == ExitCode.DONE
    assert "the connection broke" in capsys.readouterr().err


async def test_a_load_fails_also_when_its_connection_broke(
    api: FakeControlApi, capsys: pytest.CaptureFixture[str]
) -> None:
    api.break_waits = True
    api.rows = [row("chat", "failed", last_error="no memory")]
    assert await roundhouse(api, "load", "chat") == ExitCode.FAILED
    assert "chat failed: no memory" in capsys.readouterr().err


@pytest.mark.parametrize(("verb", "state"), [("load", "loading"), ("unload", "unloading")])
async def test_ctrl_c_ends_the_waiting_alone(api: FakeControlApi, verb: str, state: str) -> None:
    api.rows = [row("chat", state)]
    program = await started(api, verb, "chat")
    await until("it waits", lambda: any(what == verb for what, _ in api.requests))
    program.send_signal(signal.SIGINT)
    out, err = await program.communicate()
    assert (program.returncode, out) == (ExitCode.INTERRUPTED, b"")
    assert err.decode().startswith(f"roundhouse: chat goes on {state}; ")


async def test_on_a_terminal_a_bar_shows_how_far_it_is(api: FakeControlApi) -> None:
    api.rows = [row("chat", "loading", replicas=2, loaded_replicas=1, load_progress=0.4)]
    async with Terminal() as terminal:
        program = await started(api, "load", "chat", stderr=terminal.end)
        await until("a bar", lambda: "1 of 2 replicas ready" in terminal.text)
        assert "━" in terminal.text
        api.rows = [row("chat", replicas=2, loaded_replicas=2)]
        api.go.set()
        out, _ = await program.communicate()
    assert (program.returncode, out) == (ExitCode.DONE, b"chat: loaded, 2 of 2 replicas ready\n")


@pytest.mark.parametrize(
    ("seen", "bar"),
    [
        (row("a", "loading", load_progress=0.5), ProgressBar(0.5, "0 of 1 replica ready")),
        (row("a", "loading", blocked=["waits\nlong", "x"]), ProgressBar(None, "0 of 1 replica ready; waits | long")),
        (row("a", "unloading", load_progress=0.5), ProgressBar(None, "engines stop")),
        (
            row("a", "unloading", held_by=[HeldBy(request_id="r", replica="a/0", gateway="g", since=1.0)]),
            ProgressBar(None, "1 running request"),
        ),
    ],
)
def test_what_the_bar_shows(seen: AdminModel, bar: ProgressBar) -> None:
    assert progress_bar_of(seen) == bar


@pytest.mark.parametrize(("arguments", "hold"), [([], True), (["--free"], False)])
async def test_an_unload(
    api: FakeControlApi, arguments: list[str], hold: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    api.rows = [row("chat", "unloaded")]
    api.go.set()
    assert await roundhouse(api, "unload", "chat", *arguments) == ExitCode.DONE
    assert question(api, "unload")["body"] == {"hold": hold}
    assert capsys.readouterr().out == "chat: unloaded\n"


async def test_an_unload_that_takes_long_tells_what_holds_it(
    api: FakeControlApi, capsys: pytest.CaptureFixture[str]
) -> None:
    held = [HeldBy(request_id=f"req-{n}", replica="chat/0", gateway="gw-1", since=0.0) for n in range(12)]
    api.rows = [row("chat", "unloading", held_by=held)]
    assert await roundhouse(api, "unload", "chat", "--timeout", "0.05") == ExitCode.PENDING
    first, second, *others = capsys.readouterr().out.splitlines()
    assert first == "chat: still unloading; it waits for 12 running requests:"
    assert second.startswith("  request req-0 in chat/0, for ")
    assert second.endswith(" s, through gw-1")
    assert others[-1] == "  and 2 more"
    assert await roundhouse(api, "unload", "chat", "--no-wait", "--json") == ExitCode.PENDING
    assert len(json.loads(capsys.readouterr().out)["held_by"]) == 12


async def test_reset(api: FakeControlApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert await roundhouse(api, "reset", "chat") == ExitCode.DONE
    assert capsys.readouterr().out == "chat: as the files say (enabled in the files); now loaded\n"
    assert await roundhouse(api, "reset", "chat", "--json") == ExitCode.DONE
    assert AdminModel.model_validate_json(capsys.readouterr().out) == api.rows[0]
    assert await roundhouse(api, "reset", "other") == ExitCode.FAILED
    assert "No model 'other' is declared. `roundhouse status` lists the names." in capsys.readouterr().err


@pytest.mark.parametrize("command", ["load", "unload", "reset", "logs"])
async def test_without_a_controller_it_is_one_line(
    folder: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await roundhouse(FakeControlApi(folder / "none.sock"), command, "chat") == ExitCode.NO_CONTROLLER
    assert capsys.readouterr() == (
        "",
        f"roundhouse: no controller answers at unix:{folder}/none.sock (No such file or directory); "
        "`roundhouse up` starts one\n",
    )
