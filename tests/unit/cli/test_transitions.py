"""`load`, `unload` and `reset` against the admin API on a real unix socket."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from cli.following import ProgressBar, progress_bar_of
from cli.load import failure_lines, load_values
from cli.output import CommandError, ExitCode, clock_words
from contract.admin import AdminModel, HeldBy
from contract.errors import RoundhouseError
from contract.status import ReplicaStatus
from tests.fakes.fake_control_api import FakeControlApi, row
from tests.support.cli import Cli, Output, Terminal, started
from tests.support.wait import until


def question(api: FakeControlApi, verb: str) -> Any:
    return next(asked for what, asked in api.requests if what == verb)


async def test_a_load_with_values(api: FakeControlApi, cli: Cli) -> None:
    api.go.set()
    values = ("--set", "gguf_n_ctx=8192", "--set", "gguf_flash_attn=on", "--set", "gguf_type_k=null")
    shown = await cli("load", "chat", *values, "--replicas", "2", "--timeout", "7")
    assert shown == Output(ExitCode.DONE, "chat: loaded, 1 of 1 replica ready\n")
    body = {"gguf_n_ctx": 8192, "gguf_flash_attn": "on", "gguf_type_k": None, "replicas": 2}
    assert question(api, "load") == {"name": "chat", "wait": "true", "timeout_s": "7", "body": body}


async def test_a_field_that_no_load_sets_has_the_nearest_name(api: FakeControlApi, cli: Cli) -> None:
    api.rows = [row("chat", load_constraints={"llama_server_n_ctx": {"kind": "integer"}})]
    refused = await cli("load", "chat", "--set", "llama_server_n_ctz=1")
    assert (refused.code, refused.out) == (ExitCode.USAGE, "")
    assert "--set llama_server_n_ctz: no load of chat sets it; did you mean `llama_server_n_ctx`?" in refused.err
    assert not [what for what, _ in api.requests if what == "load"]


def _replica(index: int, *, outdated: bool = False) -> ReplicaStatus:
    spec_hash = "old" if outdated else "new"
    return ReplicaStatus(
        name=f"chat-{index}-{spec_hash}", index=index, attempt=1, phase="ready", spec_hash=spec_hash, outdated=outdated
    )


def _pair(*, outdated: bool = True, **fields: Any) -> list[AdminModel]:
    """A model of two loaded replicas, the second of which may have the values of before."""
    details = [_replica(0), _replica(1, outdated=outdated)]
    return [row("chat", replicas=2, loaded_replicas=2, replica_details=details, **fields)]


async def test_a_restart_is_done_once_every_replica_has_the_new_values(api: FakeControlApi, cli: Cli) -> None:
    api.go.set()
    api.rows = _pair(outdated=False)
    shown = await cli("load", "chat", "--set", "gguf_n_ctx=8192", "--restart")
    assert shown == Output(ExitCode.DONE, "chat: loaded, 2 of 2 replicas ready\n")
    asked = {"name": "chat", "wait": "true", "timeout_s": "600", "restart": "true", "body": {"gguf_n_ctx": 8192}}
    assert question(api, "load") == asked
    api.unfinished = True
    api.rows = _pair()
    assert await cli("load", "chat", "--restart") == Output(
        ExitCode.PENDING, "chat: restarting, it serves meanwhile, 1 of 2 replicas has the new values\n"
    )


async def test_a_restart_that_failed_says_that_the_model_serves_and_how_it_is_taken_back(
    api: FakeControlApi, cli: Cli
) -> None:
    reason = "no memory"
    api.rows = _pair(last_error=reason, blocked=[reason])
    api.refusal = RoundhouseError("model_failed", reason)
    words = "chat serves with the values of before, the new ones failed: no memory; `roundhouse reset chat` ends that"
    assert await cli("load", "chat", "--restart") == Output(ExitCode.FAILED, err=f"roundhouse: {words}\n")


@pytest.mark.parametrize(
    ("arguments", "before", "after"),
    [(["--restart"], _pair(), _pair(outdated=False)), ([], [row("chat", "loading")], [row("chat")])],
    ids=["a restart", "a load"],
)
async def test_a_load_and_a_restart_outlast_their_connection(
    api: FakeControlApi, cli: Cli, arguments: list[str], before: list[AdminModel], after: list[AdminModel]
) -> None:
    api.break_waits = True
    api.rows = before
    loading = asyncio.create_task(cli("load", "chat", *arguments))
    await until("it asks for the row twice", lambda: api.requests.count(("model", "chat")) >= 2)
    # As a gateway answers while the controller restarts, and the controller before it has looked at the engines.
    api.row_refusal = RoundhouseError("controller_unavailable", "The controller is not connected.")
    await until("it asks again", lambda: api.requests.count(("model", "chat")) >= 4)
    assert not loading.done()
    api.row_refusal = None
    api.rows = after
    shown = await loading
    assert shown.code == ExitCode.DONE
    assert "the connection broke" in shown.err


async def test_a_load_fails_also_when_its_connection_broke(api: FakeControlApi, cli: Cli) -> None:
    api.break_waits = True
    api.rows = [row("chat", "failed", last_error="no memory")]
    shown = await cli("load", "chat")
    assert shown.code == ExitCode.FAILED
    assert "chat failed: no memory" in shown.err


async def test_a_load_as_json_is_the_row(api: FakeControlApi, cli: Cli) -> None:
    api.go.set()
    shown = await cli("load", "chat", "--json")
    assert (shown.code, AdminModel.model_validate_json(shown.out)) == (ExitCode.DONE, api.rows[0])
    api.rows = [row("chat", "failed", last_error="the file is missing: x.gguf\nlast line of its log")]
    failed = await cli("load", "chat", "--json")
    assert (failed.code, failed.json["runtime_state"]) == (ExitCode.FAILED, "failed")
    assert failed.err == "roundhouse: chat failed: the file is missing: x.gguf\nlast line of its log\n"


async def test_a_name_may_hold_anything_that_a_name_may(api: FakeControlApi, cli: Cli) -> None:
    api.rows = [row("org/long-name:8b@v1+x")]
    api.go.set()
    assert (await cli("load", "org/long-name:8b@v1+x")).code == ExitCode.DONE
    assert (await cli("load", "a b?c#d")).code == ExitCode.FAILED
    assert [asked["name"] for what, asked in api.requests if what == "load"] == ["org/long-name:8b@v1+x", "a b?c#d"]


@pytest.mark.parametrize("arguments", [["--no-wait"], ["--timeout", "0"]])
async def test_a_load_that_is_not_waited_for(api: FakeControlApi, arguments: list[str], cli: Cli) -> None:
    api.rows = [row("chat", "loading", blocked=["waits for a GPU\nsecond line"])]
    out = "chat: still loading, 0 of 1 replica ready\nchat: waits for a GPU | second line\n"
    assert await cli("load", "chat", *arguments) == Output(ExitCode.PENDING, out)
    assert question(api, "load") == {"name": "chat", "wait": "false", "body": {}}


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
def test_lines_of_a_failed_load(seen: AdminModel, lines: list[str]) -> None:
    assert list(failure_lines(seen)) == lines


async def test_a_failed_load_that_is_tried_again(api: FakeControlApi, cli: Cli) -> None:
    api.rows = [row("chat", "failed", last_error="no memory", retry_at=5000.0)]
    api.go.set()
    again = f"tried again at {clock_words(5000.0)} (`roundhouse unload chat` ends that)"
    assert await cli("load", "chat") == Output(ExitCode.FAILED, err=f"roundhouse: chat failed: no memory; {again}\n")
    assert ("model", "chat") in api.requests
    api.rows = [row("chat")]
    api.refusal = RoundhouseError("model_failed", "no memory")
    shown = await cli("load", "chat")
    assert shown == Output(ExitCode.DONE, "chat: loaded, 1 of 1 replica ready\n"), "its next attempt succeeded"


@pytest.mark.parametrize(
    ("verb", "state", "words"),
    [
        ("load", "unloaded", "chat: not loaded yet, now unloaded, 0 of 1 replica ready"),
        ("unload", "loaded", "chat: not unloaded yet, now loaded"),
        ("unload", "unloading", "chat: still unloading"),
    ],
)
async def test_what_is_not_done_says_what_it_waits_for(
    api: FakeControlApi, verb: str, state: str, words: str, cli: Cli
) -> None:
    api.rows = [row("chat", state, blocked=["the controller is paused\nsecond"])]
    out = f"{words}\nchat: the controller is paused | second\n"
    assert await cli(verb, "chat", "--timeout", "0.05") == Output(ExitCode.PENDING, out)
    assert question(api, verb)["wait"] == "true"


@pytest.mark.parametrize(
    "arguments",
    [["load", ""], ["unload", " "], ["reset", ""], ["logs", ""], ["history", ""], ["events", "--model", ""]],
)
async def test_a_name_is_not_empty(api: FakeControlApi, arguments: list[str], cli: Cli) -> None:
    shown = await cli(*arguments)
    assert (shown.code, shown.err.count("\n"), api.requests) == (ExitCode.USAGE, 1, [])
    assert "a model's name is not empty" in shown.err


TOO_SMALL = RoundhouseError("invalid_load_request", "`gguf_n_ctx` must be at least 1.", param="gguf_n_ctx")
NO_NUMBER = RoundhouseError("schema_violation", "must be a number", param="gguf_n_ctx")
CONFLICT = RoundhouseError("state_conflict", "it is\nbeing unloaded")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (TOO_SMALL, "gguf_n_ctx must be at least 1."),
        (NO_NUMBER, "gguf_n_ctx: must be a number"),
        (
            CONFLICT,
            "it is | being unloaded. roundhouse status shows the state; wait until the transition has ended.",
        ),
    ],
)
async def test_a_refusal_names_the_field_and_the_way_out(
    api: FakeControlApi, error: RoundhouseError, line: str, cli: Cli
) -> None:
    api.refusal = error
    assert await cli("load", "chat") == Output(ExitCode.FAILED, err=f"roundhouse: the controller refused: {line}\n")


async def test_replicas_are_said_once(api: FakeControlApi, cli: Cli) -> None:
    line = "roundhouse: --replicas and --set replicas: say it once\n"
    assert await cli("load", "chat", "--replicas", "2", "--set", "replicas=3") == Output(ExitCode.USAGE, err=line)
    assert api.requests == []


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


HELD = HeldBy(request_id="r", replica="a/0", gateway="g", since=1.0)


@pytest.mark.parametrize(
    ("seen", "bar"),
    [
        (row("a", "loading", load_progress=0.5), ProgressBar(0.5, "0 of 1 replica ready")),
        (row("a", "loading", blocked=["waits\nlong", "x"]), ProgressBar(None, "0 of 1 replica ready; waits | long")),
        (row("a", "unloading", load_progress=0.5), ProgressBar(None, "engines stop")),
        (row("a", "unloading", held_by=[HELD]), ProgressBar(None, "1 running request")),
    ],
)
def test_what_the_bar_shows(seen: AdminModel, bar: ProgressBar) -> None:
    assert progress_bar_of(seen) == bar


@pytest.mark.parametrize(("arguments", "hold"), [([], True), (["--free"], False)])
async def test_an_unload_asks_for_a_hold_where_it_is_meant(
    api: FakeControlApi, arguments: list[str], hold: bool, cli: Cli
) -> None:
    api.rows = [row("chat", "unloaded")]
    api.go.set()
    assert await cli("unload", "chat", *arguments) == Output(ExitCode.DONE, "chat: unloaded\n")
    assert question(api, "unload")["body"] == {"hold": hold}


async def test_an_unload_that_takes_long_names_the_requests_that_hold_it(api: FakeControlApi, cli: Cli) -> None:
    held = [HeldBy(request_id=f"req-{n}", replica="chat/0", gateway="gw-1", since=0.0) for n in range(12)]
    api.rows = [row("chat", "unloading", held_by=held)]
    shown = await cli("unload", "chat", "--timeout", "0.05")
    first, second, *others = shown.lines
    assert shown.code == ExitCode.PENDING
    assert first == "chat: still unloading; it waits for 12 running requests:"
    assert second.startswith("  request req-0 in chat/0, for ")
    assert second.endswith(" s, through gw-1")
    assert others[-1] == "  and 2 more"
    as_json = await cli("unload", "chat", "--no-wait", "--json")
    assert (as_json.code, len(as_json.json["held_by"])) == (ExitCode.PENDING, 12)


async def test_a_reset_says_what_the_files_say(api: FakeControlApi, cli: Cli) -> None:
    out = "chat: as the files say (enabled in the files); now loaded\n"
    assert await cli("reset", "chat") == Output(ExitCode.DONE, out)
    as_json = await cli("reset", "chat", "--json")
    assert (as_json.code, AdminModel.model_validate_json(as_json.out)) == (ExitCode.DONE, api.rows[0])
    other = await cli("reset", "other")
    assert other.code == ExitCode.FAILED
    assert "No model 'other' is declared. roundhouse status lists the names." in other.err


# The values of `load --set`.


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("null", None),
        ("", None),
        ("true", True),
        ("8192", 8192),
        ("-1", -1),
        ("0x10", 16),
        ("0.25", 0.25),
        *((text, text) for text in ("on", "yes", "q8_0", "8,4", "a: b # c", "[1]", "a=b")),
        ('"8"', "8"),
        ("'null'", "null"),
        ('"a\\nb"', "a\nb"),
        (" 8 ", 8),
    ],
)
def test_values_are_read_as_the_files_are(text: str, value: object) -> None:
    [read] = load_values([f"key={text}"]).values()
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["gguf_n_ctx"], "takes key=value"),
        (["=8"], "takes key=value"),
        (["a=1", "a=2"], "--set a stands twice"),
        (["a='x"], "--set a: not YAML 1.2"),
        (['a="x" y'], "--set a: "),
        (["a=99999999999999999999"], "too large a number"),
        (["a=.inf"], "not a finite number"),
    ],
)
def test_values_that_are_none(given: list[str], words: str) -> None:
    with pytest.raises(CommandError, match="--set") as caught:
        load_values(given)
    assert words in str(caught.value)
    assert caught.value.code is ExitCode.USAGE
