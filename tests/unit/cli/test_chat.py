"""`roundhouse chat` and `run` against a real gateway, with an engine that is a fake; and where the gateway is found."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from cli.chat import Conversation, waiting_words
from cli.gateway_client import find_gateway, order_addresses
from cli.output import ExitCode, print_piece
from tests.fakes.fake_control_api import FakeControlApi, model, status
from tests.fakes.fake_controller import route
from tests.fakes.fake_retrieval import fake_retrieval, hit
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.fakes.mock_engine import WORDS, MockEngine
from tests.support.cli import Cli, Terminal, started
from tests.support.ports import free_port
from tests.support.wait import until

pytestmark = pytest.mark.slow
SENTENCE = " ".join(WORDS) + " "
"""As the fake writes it: each word with a blank."""


class Site(NamedTuple):
    gateway: GatewayHarness
    engine: MockEngine


@pytest.fixture
async def site(api: FakeControlApi) -> AsyncIterator[Site]:
    """A gateway that serves the model `chat`, and whose address the controller says."""
    async with engines(1) as [engine], gateway_harness() as gateway:
        await gateway.publish(route("chat", [engine.url]))
        api.status = status(model("chat"), gateway_addresses=[gateway.url])
        yield Site(gateway, engine)


def asked(engine: MockEngine) -> list[list[str]]:
    """What each request for an answer said, message by message."""
    return [[each["content"] for each in request.body["messages"]] for request in engine.client_requests]


async def piped(api: FakeControlApi, text: str, *arguments: str) -> tuple[int | None, str, str]:
    """The end of a command whose stdin is a pipe with this text."""
    process = await started(api, *arguments, stdin=asyncio.subprocess.PIPE)
    out, err = await process.communicate(text.encode())
    return process.returncode, out.decode(), err.decode()


async def test_one_answer_is_all_of_stdout(site: Site, api: FakeControlApi, cli: Cli) -> None:
    done = await cli("run", "chat", "Hello", "--system", "Be brief.")
    assert done == (ExitCode.DONE, f"{SENTENCE}\n", "")
    assert await piped(api, "From a\npipe", "run", "chat", "-") == (0, f"{SENTENCE}\n", "")
    assert asked(site.engine) == [["Be brief.", "Hello"], ["From a\npipe"]]
    as_json = (await cli("run", "chat", "Hello", "--json")).json
    assert as_json == {"model": "chat", "text": SENTENCE, "finish_reason": "stop"}
    empty = await cli("run", "chat", " ")
    assert (empty.code, empty.err) == (ExitCode.USAGE, "roundhouse: the prompt is empty\n")


async def test_answers_from_documents_name_their_files(capsys: pytest.CaptureFixture[str]) -> None:
    async with fake_retrieval() as retrieval, engines(1) as [engine], gateway_harness(retrieval_url=retrieval.url) as g:
        await g.publish(route("chat", [engine.url]))
        cli = Cli(capsys)
        asking = ("run", "chat", "Where is the coal?", "--documents", "--gateway", g.url)
        none = await cli(*asking)
        assert none == (0, f"{SENTENCE}\n", "roundhouse: sources: none; no document has a fitting passage\n")
        retrieval.hits = [hit(1, "In the shed."), hit(2, "In the yard."), hit(1, "Black.")]
        done = await cli(*asking)
        assert done == (0, f"{SENTENCE}\n", "roundhouse: sources: d1.md [1] [3], d2.md [2]\n")
        assert "In the shed." in asked(engine)[-1][-1]
        assert [each["number"] for each in (await cli(*asking, "--json")).json["sources"]] == [1, 2, 3]


async def test_without_an_answer_stdout_is_empty_and_stderr_has_the_remedy(
    site: Site, api: FakeControlApi, cli: Cli
) -> None:
    unknown = await cli("run", "chta", "Hello")
    assert (unknown.code, unknown.out) == (ExitCode.FAILED, "")
    assert "roundhouse status lists the names" in unknown.err
    api.status = status(model("chat"), gateway_addresses=[f"http://127.0.0.1:{free_port()}"])
    unreached = await cli("run", "chat", "Hello")
    assert (unreached.code, unreached.out) == (ExitCode.NO_CONTROLLER, "")
    assert "no gateway answers" in unreached.err
    assert "`roundhouse up` starts one" in unreached.err
    assert "ROUNDHOUSE_STATE for another state folder" in unreached.err
    assert len(unreached.err.splitlines()) == 1
    assert asked(site.engine) == []


async def test_an_answer_that_breaks_off_is_a_failure(site: Site, cli: Cli) -> None:
    task = asyncio.create_task(cli("run", "chat", "Hello", "--max-tokens", "100000"))
    await until("the engine answers", lambda: site.engine.running > 0)
    await site.engine.stop()
    done = await task
    assert done.code == ExitCode.FAILED
    assert len(done.err.splitlines()) == 1


async def test_a_conversation_through_a_pipe(site: Site, api: FakeControlApi) -> None:
    assert Conversation("chat", documents=True).ask("Hello")["rag"] is True, "in `chat --documents`"
    lines = ["Hello", "/system Be brief.", "", "Again", "/clear", "Anew", "/quit", "Never"]
    code, out, err = await piped(api, "\n".join(lines), "chat", "chat")
    assert (code, out, err) == (0, f"{SENTENCE}\n" * 3, "")
    assert asked(site.engine) == [["Hello"], ["Be brief.", "Hello", SENTENCE, "Again"], ["Be brief.", "Anew"]]
    code, out, err = await piped(api, "/model chta\nHello\n", "chat", "chat")
    assert (code, out) == (1, "")
    assert "chta" in err


async def test_ctrl_c_stops_the_answer_and_not_the_conversation(site: Site, api: FakeControlApi) -> None:
    site.engine.words = ["word"] * 200_000
    async with Terminal() as terminal:
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), terminal.end)
        process = await started(api, "chat", "chat", **streams, start_new_session=True, preexec_fn=_take_terminal)
        await until("the prompt", lambda: "> " in terminal.text)
        terminal.type_text("Hello\n")
        await until("the answer", lambda: "word word" in terminal.text)
        terminal.type_text("\x03")
        await until("its end", lambda: "stopped" in terminal.text)
        await until("the engine is free", lambda: site.engine.running == 0)
        site.engine.words = ["Yes."]
        terminal.type_text("Still there?\n")
        await until("the next answer", lambda: "Yes." in terminal.text)
        terminal.type_text("/help\n")
        await until("the help", lambda: "/clear" in terminal.text)
        terminal.type_text("\x04")
        assert await process.wait() == 0
    first, second = asked(site.engine)
    assert (first, second[0], second[2]) == (["Hello"], "Hello", "Still there?")
    assert second[1].startswith("word word")


def _take_terminal() -> None:
    """In the new session: stdin becomes its terminal, so that Ctrl-C comes as a signal."""
    os.close(os.open(os.ttyname(0), os.O_RDWR))


def test_what_a_request_waits_for() -> None:
    load = {"stage": "load", "model": "m", "state": "loading", "progress": 0.254}
    assert waiting_words(load) == "m is loading, 25 %"
    assert waiting_words({**load, "reason": "a needs 2 GiB"}) == "m is loading, 25 % (a needs 2 GiB)"
    queue = {"stage": "queue", "model": "m", "queue_position": 3, "queue_depth": 4}
    assert waiting_words(queue) == "waiting in the queue of m, place 3"
    told = {"wait_p50_ms": 2400, "wait_p90_ms": 65000}
    assert waiting_words({**queue, **told}) == "waiting in the queue of m, place 3, usually 2 s to 1 min 5 s"
    told = {"wait_p50_ms": 2400, "wait_p90_ms": 2400}
    assert waiting_words({**queue, **told}) == "waiting in the queue of m, place 3, usually 2 s"
    assert waiting_words({"stage": "prefill", "model": "m", "progress": 0.5}) == "m reads the prompt, 50 %"
    assert waiting_words({"stage": "of a later version"}) == "waiting"


def test_addresses_of_this_machine_are_tried_first() -> None:
    listened = ["http://gateway.egress:8080", "https://0.0.0.0:8080", "http://[::]:8080", "http://127.0.0.1:8080"]
    assert order_addresses(listened) == [
        "https://127.0.0.1:8080",
        "http://[::1]:8080",
        "http://127.0.0.1:8080",
        "http://gateway.egress:8080",
    ]


async def test_the_controller_says_where_the_gateway_is(site: Site, api: FakeControlApi, cli: Cli) -> None:
    refused = f"http://127.0.0.1:{free_port()}"
    api.status = status(model("chat"), gateway_addresses=[refused, site.gateway.url])
    assert (await cli("run", "chat", "Hello")).code == ExitCode.DONE
    given = await cli("run", "chat", "Hello", "--gateway", refused)
    assert (given.code, refused in given.err) == (ExitCode.NO_CONTROLLER, True)


async def test_a_gateway_in_the_controllers_place_is_the_gateway(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    done = await Cli(capsys, "--controller", site.gateway.url)("run", "chat", "Hello")
    assert done == (ExitCode.DONE, f"{SENTENCE}\n", "")


async def test_nothing_that_is_meant_for_another_installation_goes_to_this_one(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROUNDHOUSE_PORT", str(urlsplit(site.gateway.url).port))
    gone = f"http://127.0.0.1:{free_port()}"
    for named in ("option", "variable"):
        if named == "variable":
            monkeypatch.setenv("ROUNDHOUSE_CONTROLLER_URL", gone)
        options = ("--controller", gone) if named == "option" else ()
        refused = await Cli(capsys)("run", "chat", "Hello", *options)
        assert (refused.code, gone in refused.err) == (ExitCode.NO_CONTROLLER, True), named
    assert not site.engine.client_requests


async def test_a_key_goes_to_another_machine_only_if_its_certificate_is_believed(api: FakeControlApi) -> None:
    for listened, verifies in (("https://10.0.0.5:8443", True), ("https://0.0.0.0:8443", False)):
        api.status = status(model("chat"), gateway_addresses=[listened])
        assert (await find_gateway(None, api.url)).verifies is verifies
    assert order_addresses(["http://0.0.0.0:8080"], "gpu.example") == ["http://gpu.example:8080"]


def test_a_terminal_gets_no_control_characters_of_a_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "a\tb\n\x1b]52;c;eA==\x07\x9b2J\x7f\rü"
    print_piece(text)
    assert capsys.readouterr().out == text
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_piece(text)
    assert capsys.readouterr().out == "a\tb\n]52;c;eA==2Jü"
