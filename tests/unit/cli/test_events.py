"""`events`: the stream as it is read, and what is done when it breaks."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import get_args

import pytest

from cli.output import ExitCode, time_words
from common.sse import SseEvent, SseReader
from contract.errors import RoundhouseError
from contract.journal import EventKind
from tests.fakes.fake_control_api import GONE, FakeControlApi, entry
from tests.support.cli import Cli, Output, started
from tests.support.wait import until

pytestmark = pytest.mark.slow

STREAM = (
    b": heartbeat\n\nid: 1\nevent: state\ndata: {}\n\n"
    b"id: 2\r\nevent: file\r\ndata: a\r\ndata:b\r\n\r\nevent: gap\n\ndata: plain\n\nid: 9\n\n"
)
EVENTS = [
    SseEvent("state", "{}", "1"),
    SseEvent("file", "a\nb", "2"),
    SseEvent("gap", "", "2"),
    SseEvent("message", "plain", "2"),
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_stream_is_read_however_it_is_cut(size: int) -> None:
    reader = SseReader()
    cut = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    assert [event for chunk in cut for event in reader.feed_bytes(chunk)] == EVENTS


async def test_recent_events_are_shown_a_line_each(api: FakeControlApi, cli: Cli) -> None:
    problem = entry(3, "problem", model=None, actor="files", message="a\nb")
    api.journal = [entry(1), entry(2), problem, entry(4, "statement", actor="cli", message="loaded by cli")]
    assert await cli("events") == Output(
        ExitCode.DONE,
        f"{time_words(1001)}  1  state       chat: thing 1 (controller)\n"
        f"{time_words(1002)}  2  state       chat: thing 2 (controller)\n"
        f"{time_words(1003)}  3  problem     a | b (files)\n"
        f"{time_words(1004)}  4  statement   chat: loaded by cli\n",
    )
    shown = await cli("events", "--after", "1", "--model", "chat", "--kind", "state", "--json")
    assert (shown.code, [json.loads(line)["id"] for line in shown.lines]) == (ExitCode.DONE, [2])


class Following:
    """A run of `events --follow --json`, line by line."""

    def __init__(self, program: asyncio.subprocess.Process) -> None:
        self._program = program

    async def ids(self, number: int) -> list[int]:
        """The ids of the next so many lines."""
        assert self._program.stdout is not None
        async with asyncio.timeout(60):
            return [json.loads(await self._program.stdout.readline())["id"] for _ in range(number)]

    async def stop(self) -> str:
        """Ctrl-C; what it said on stderr."""
        self._program.send_signal(signal.SIGINT)
        out, err = await self._program.communicate()
        assert (self._program.returncode, out) == (ExitCode.DONE, b"")
        return err.decode()


async def following(api: FakeControlApi, *arguments: str) -> Following:
    return Following(await started(api, "events", "--follow", "--json", *arguments))


def questions(api: FakeControlApi) -> list[dict[str, str]]:
    return [question for what, question in api.requests if what == "events"]


async def test_a_broken_connection_is_made_again_where_it_broke(api: FakeControlApi) -> None:
    api.journal = [entry(3)]
    api.streams = [[entry(4), entry(5), GONE], [GONE], [entry(6)]]
    run = await following(api, "--model", "chat", "--kind", "state")
    assert await run.ids(3) == [4, 5, 6]
    assert [question["last"] for question in questions(api)] == ["3", "5", "5"]
    assert questions(api)[2] == {"model": "chat", "kind": "state", "last": "5"}
    err = await run.stop()
    assert err.startswith("roundhouse: the connection broke (")
    assert err.endswith("); asking for what came after event 5\n")
    assert err.count("\n") == 1


async def test_after_names_the_event_from_which_on_it_follows(api: FakeControlApi) -> None:
    api.journal = [entry(7)]
    api.streams = [[entry(2)]]
    run = await following(api, "--after", "1")
    assert await run.ids(1) == [2]
    assert questions(api)[0]["last"] == "1"
    assert await run.stop() == ""


async def test_a_controller_that_restarts_is_waited_for(api: FakeControlApi) -> None:
    api.streams = [[entry(1)]]
    run = await following(api)
    assert await run.ids(1) == [1]
    await api.close()
    api.streams = [[entry(2)]]
    async with api:
        assert await run.ids(1) == [2]
        assert questions(api)[-1]["last"] == "1"
        assert "asking for what came after event 1" in await run.stop()


async def test_what_is_lost_is_said_and_the_rest_goes_on(api: FakeControlApi) -> None:
    gateway_stops = RoundhouseError("gateway_stopping", "The gateway was stopped.").json_bytes().decode()
    gap, unknown = 'event: gap\ndata: {"message": "x"}\n\n', "id: 4\nevent: new\ndata: {}\n\n"
    api.streams = [[gap, unknown, entry(5), f"event: error\ndata: {gateway_stops}\n\n"], []]
    run = await following(api)
    assert await run.ids(1) == [5]
    await until("it asks again", lambda: len(questions(api)) == 2)
    assert (await run.stop()).splitlines() == [
        "roundhouse: events were lost here: they are no longer kept; `roundhouse history` has the changes",
        "roundhouse: event 4 cannot be read: it is of another version",
        "roundhouse: the connection broke (The gateway was stopped.); asking for what came after event 5",
    ]


async def test_a_question_that_is_refused_is_not_asked_again(api: FakeControlApi, cli: Cli) -> None:
    api.refusal = RoundhouseError("schema_violation", "kind is no kind.", param="kind")
    code, _, err = await cli("events", "-f", "--kind", "state")
    assert (code, len(questions(api))) == (ExitCode.FAILED, 1)
    assert "kind is no kind." in err


@pytest.mark.parametrize("command", ["events", "history"])
async def test_a_kind_that_there_is_not(api: FakeControlApi, command: str, cli: Cli) -> None:
    line = f"roundhouse: --kind crash: there is no such kind; the kinds are {', '.join(get_args(EventKind))}\n"
    assert await cli(command, "--kind", "state", "--kind", "crash") == Output(ExitCode.USAGE, err=line)
    assert api.requests == []


async def test_events_of_a_model_that_there_is_not(api: FakeControlApi, cli: Cli) -> None:
    line = "roundhouse: no model gone is declared\n"
    assert await cli("events", "--model", "gone") == Output(ExitCode.FAILED, err=line)
    api.journal = [entry(1, model="gone")]
    shown = await cli("events", "--model", "gone")
    assert (shown.code, shown.err) == (ExitCode.DONE, "")
    api.streams = [[entry(1, model="new")]]
    run = await following(api, "--model", "new")
    assert await run.ids(1) == [1]
    assert await run.stop() == "roundhouse: no model new is declared\n"


async def test_what_was_left_out_is_not_asked_for_again(api: FakeControlApi) -> None:
    api.streams = [["id: 8\n: ka\n\n", GONE], [entry(9)]]
    run = await following(api, "--model", "chat")
    assert await run.ids(1) == [9]
    assert questions(api)[-1]["last"] == "8"
    assert "after event 8" in await run.stop()
