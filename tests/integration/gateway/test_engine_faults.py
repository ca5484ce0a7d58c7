"""Engines that send half chunks, wrong lengths, garbage, or nothing more, through a whole gateway, generated.

Whatever an engine does, its client gets a complete answer in its API's form, and nothing is held afterwards.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest
import uvloop
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from contract.errors import ERROR_CODES
from tests.fakes.fake_scripted_engine import Script, ScriptedEngine, Then, script, scripted
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support.api_families import FAMILIES, Family
from tests.support.campaign import campaign_count
from tests.support.gateway_rest import nothing_left

AT_ONCE = 12
"""Requests of one example, each to an engine of its own."""
DEADLINE_S = 0.5

GARBAGE = st.one_of(
    st.binary(max_size=200),
    st.sampled_from(
        [
            b"data: {not json\n\n",
            b": only a comment\n\n",
            b"\n\n\n\n",
            b"event: error\ndata: what?\n\n",
            b'data: {"error":{"message":"out of cells"}}\n\n',
            b'error: {"message":"old"}\n\n',
            b'data: {"choices":7}\n\n',
            b'data: {"choices":[{"delta":{"content":7,"tool_calls":[7,{"index":"x","function":7}]}}]}\n\n',
            b'data: {"choices":[{"delta":{"tool_calls":[{"index":9,"function":{"arguments":"{"}}]}}]}\n\n',
            b'data: {"choices":[7],"usage":[]}\n\n',
            b'data: {"usage":{"prompt_tokens":"many"},"choices":[]}\n\n',
            b'data: {"type":"response.completed"}\n\n',
            b'data: {"type":"error","error":7}\n\n',
            b"data: " + b"[" * 3000 + b"\n\n",
            b"data: \xff\xfe\n\n",
        ]
    ),
)
HEADS = st.sampled_from([200, 200, 200, 200, 201, 204, 302, 400, 404, 413, 422, 429, 500, 501, 503, 599])
TYPES = st.sampled_from(
    ["text/event-stream", "text/event-stream; charset=utf-8", "application/json", "text/html", "\xfcber/x", ""]
)
FRAMINGS = st.sampled_from(["length", "length", "chunks", "chunks", "short", "long", "until_close", "both", "no_http"])


@dataclass(frozen=True)
class Answer:
    """What an engine says to one request."""

    status: int
    kind: str
    framing: str
    body: bytes
    cuts: tuple[int, ...]
    then: Then
    early: bool

    def script(self) -> Script:
        return script(self.head() + self.framed(), self.then, cuts=self.cuts, early=self.early)

    def head(self) -> bytes:
        if self.framing == "no_http":
            return b""
        lines = [f"HTTP/1.1 {self.status} X".encode(), b"content-type: " + self.kind.encode("latin-1")]
        length = {"length": 0, "both": 0, "short": 7, "long": -7}.get(self.framing)
        if length is not None:
            lines.append(b"content-length: %d" % max(0, len(self.body) + length))
        if self.framing in ("chunks", "both"):
            lines.append(b"transfer-encoding: chunked")
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def framed(self) -> bytes:
        if self.framing not in ("chunks", "both"):
            return self.body
        halves = [self.body[: len(self.body) // 2], self.body[len(self.body) // 2 :]]
        return b"".join(b"%x\r\n%b\r\n" % (len(half), half) for half in halves if half) + b"0\r\n\r\n"

    @property
    def promised(self) -> bytes | None:
        """The whole body, as HTTP tells it; None: it is not whole, or no HTTP."""
        if self.framing in ("both", "no_http"):
            return None
        if self.status == 204:
            return b""
        if self.framing == "short" or (self.framing == "until_close" and self.then not in ("close", "deaf")):
            return None
        return self.body[:-7] if self.framing == "long" else self.body


@dataclass(frozen=True)
class Asked:
    """One request, and what its engine does."""

    family: Family
    stream: bool
    gathers: bool
    """The gateway is to ask for a stream, whatever the client asks for."""
    answer: Answer

    @property
    def reads_events(self) -> bool:
        """The engine's answer is a stream of events that was asked for."""
        is_stream = self.answer.status == 200 and self.answer.kind.startswith("text/event-stream")
        return is_stream and self.family.streams and (self.stream or self.gathers)


@st.composite
def asked(draw: st.DrawFn) -> Asked:
    family = draw(st.sampled_from(FAMILIES))
    events = list(family.events)
    kind = draw(TYPES)
    if draw(st.booleans()):
        events.insert(draw(st.integers(0, len(events))), draw(GARBAGE))
    whole = st.sampled_from([family.whole, family.whole, b"{", b"", b"<p>No</p>"])
    body = b"".join(events) if "event-stream" in kind else draw(whole)
    if draw(st.integers(0, 2)) == 0:
        body = body[: draw(st.integers(0, len(body)))]
    answer = Answer(
        draw(HEADS),
        kind,
        draw(FRAMINGS),
        body,
        tuple(draw(st.lists(st.integers(1, 900), max_size=4))),
        draw(st.sampled_from(["keep", "keep", "close", "close", "reset", "stall", "deaf"])),
        draw(st.integers(0, 9)) == 0,
    )
    return Asked(family, family.streams and draw(st.booleans()), draw(st.booleans()), answer)


class Place:
    """A gateway, and engines; `m3-0` is the model of the fourth for the first family, and `g3-0`, of which the gateway
    asks streams."""

    def __init__(self, gateway: GatewayHarness, engines: list[ScriptedEngine]) -> None:
        self.gateway = gateway
        self.engines = engines

    async def ask(self, number: int, one: Asked) -> None:
        """One request, and what its client must see."""
        self.engines[number].scripts = [one.answer.script()] * 3
        family = one.family
        model = f"{'g' if one.gathers else 'm'}{number}-{FAMILIES.index(family)}"
        url, body = self.gateway.url + family.path, family.body(model, stream=one.stream)
        async with asyncio.timeout(60), self.gateway.client.post(url, json=body) as answer:
            content = await answer.read()  # raises where the connection breaks
        assert answer.headers["x-request-id"]
        if answer.status >= 400:
            check_error(one, answer.status, content)
        elif not one.reads_events:
            check_whole(one, answer.status, content)
        elif one.stream:
            assert family.ends.search(content), content[-400:]
        else:
            assert isinstance(json.loads(content), dict)


def check_whole(one: Asked, status: int, content: bytes) -> None:
    if not one.family.is_translated:
        assert (status, content) == (one.answer.status, one.answer.promised)
    else:
        assert one.answer.promised == one.family.whole
        assert b"Hi" in content
        assert isinstance(json.loads(content), dict)


def check_error(one: Asked, status: int, content: bytes) -> None:
    """An error in the family's form, with every field of ours."""
    fields = json.loads(content)
    error = fields["error"]
    assert isinstance(error["message"], str)
    if one.family.path == "/v1/messages":
        assert fields["type"] == "error"
        assert error["type"]
        return
    assert isinstance(error["code"], str)
    assert error["code"] in ERROR_CODES
    assert error["status"] == status
    assert error["next_steps"]
    assert status == ERROR_CODES[error["code"]].status or error["code"] == "engine_error"
    if status == 500:
        assert one.answer.status == 500 or b"error" in one.answer.body, "no 500 of our own"


@pytest.fixture(scope="module")
def stage() -> Iterator[tuple[asyncio.Runner, Place]]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        stack = AsyncExitStack()
        yield runner, runner.run(_open(stack))
        runner.run(stack.aclose())


async def _open(stack: AsyncExitStack) -> Place:
    gateway = await stack.enter_async_context(gateway_harness(request_timeout_s=DEADLINE_S, answer_buffer_mib=1))
    engines = [await stack.enter_async_context(scripted()) for _ in range(AT_ONCE)]
    return Place(gateway, engines)


async def _tables(place: Place) -> None:
    """Replicas by new names, so that no breaker remembers the last example."""
    seq = place.gateway.controller.seq
    models = []
    for number, engine in enumerate(place.engines):
        for letter in "mg":
            for index, family in enumerate(FAMILIES):
                made = family.route(f"{letter}{number}-{index}", engine.url, target_inflight=1)
                endpoint = made.endpoints[0].model_copy(update={"replica": f"{made.name}-{seq}"})
                models.append(made.model_copy(update={"endpoints": (endpoint,), "notices_leaving": letter == "m"}))
    await place.gateway.publish(*models)


@settings(
    max_examples=campaign_count(4, 100),
    deadline=None,
    # A failure names its request; to shrink the others away would take minutes.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(asked(), min_size=AT_ONCE // 2, max_size=AT_ONCE))
def test_whatever_an_engine_does_its_client_gets_a_complete_answer(
    stage: tuple[asyncio.Runner, Place], requests: list[Asked]
) -> None:
    runner, place = stage

    async def run() -> None:
        await _tables(place)
        outcomes = await asyncio.gather(
            *(place.ask(number, one) for number, one in enumerate(requests)), return_exceptions=True
        )
        for one, outcome in zip(requests, outcomes, strict=True):
            if outcome is not None:
                raise AssertionError(f"{one}: {outcome!r}") from outcome
        await nothing_left(place.gateway)

    runner.run(run())
