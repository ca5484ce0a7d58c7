"""Whatever bytes an engine says, however cut and ended: one ending or a cancel, nothing twice, the client goes on."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.upstream.client import EngineClient
from tests.fakes.fake_scripted_engine import OK, Then, script, scripted
from tests.support.campaign import campaign_count
from tests.support.engine_calls import PATIENCE_S, Recorder, endpoint, on, post, soon

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: a/b\r\n"
VALID = [
    HEAD + b"content-length: 11\r\n\r\nhello world",
    HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n6;a=b\r\n world\r\n0\r\nx: y\r\n\r\n",
    HEAD + b"\r\nhello world",
    HEAD + b"connection: close\r\ncontent-length: 11\r\n\r\nhello world",
    b"HTTP/1.0 200 OK\r\n\r\nhello world",
    b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"content-length: 11\r\n\r\nhello world",
    b"HTTP/1.1 204 No Content\r\n\r\n",
]
TOLD = {"end", "EngineBrokenError", "EngineGarbledError", "EngineDiedError"}


@dataclass(frozen=True)
class Edit:
    """One change of an answer, at a place that is taken modulo its length."""

    kind: str
    place: int
    length: int
    bytes_: bytes

    def of(self, answer: bytes) -> bytes:
        """The answer changed."""
        at = self.place % (len(answer) + 1)
        end = min(at + self.length, len(answer))
        middle = {
            "delete": b"",
            "duplicate": answer[at:end] * 2,
            "flip": bytes(byte ^ 1 << (self.place % 8) for byte in answer[at:end]),
            "insert": self.bytes_ + answer[at:end],
        }[self.kind]
        return answer[:at] + middle + answer[end:]


inserted = st.one_of(
    st.binary(min_size=1, max_size=6),
    st.sampled_from([b"\r\n", b"\r\n\r\n", b"0\r\n\r\n", OK, b"connection: close\r\n", b"content-length: 3\r\n"]),
)
edits = st.builds(
    Edit, st.sampled_from(["delete", "duplicate", "flip", "insert"]), st.integers(0, 400), st.integers(1, 40), inserted
)
cuts = st.one_of(st.just(range(1000)), st.just(()), st.lists(st.integers(1, 250), max_size=12))
thens: st.SearchStrategy[Then] = st.sampled_from(["close", "reset", "stall", "keep"])


async def one(client: EngineClient, base_url: str, then: Then, cancel_after: int | None) -> Recorder:
    """A request to its end; cancelled after so many turns of the loop, or when the engine says no more."""
    got = post(client, endpoint(base_url))
    if cancel_after is None and then in ("close", "reset"):
        await got.outcome()
        return got
    turns = 150 if cancel_after is None else cancel_after
    for _ in range(turns):
        if got.ending:
            break
        await asyncio.sleep(0)
    if not got.ending:
        had = (got.status, got.parts.copy())
        got.call.cancel()
        await soon("the engine is rid of it", lambda: client.busy_connections == 0 and client.connecting_requests == 0)
        assert (got.status, got.parts, got.ending) == (*had, ""), "nothing is told after a cancel"
    return got


@settings(max_examples=campaign_count(100, 5_000))
@given(
    st.lists(
        st.tuples(st.sampled_from(VALID), st.lists(edits, max_size=3), cuts, thens, st.none() | st.integers(0, 30)),
        min_size=1,
        max_size=4,
    )
)
@example([(VALID[0], [Edit("insert", 400, 1, OK)], (), "keep", None)])
@example([(VALID[1], [Edit("insert", 400, 1, b"0\r\n\r\n")], range(1000), "keep", None)])
def test_any_bytes_any_cuts_any_ending(answers: list[tuple[bytes, list[Edit], range, Then, int | None]]) -> None:
    scripts = []
    for answer, changes, places, then, _ in answers:
        for change in changes:
            answer = change.of(answer)  # noqa: PLW2901
        scripts.append(script(answer, then, cuts=places))

    async def scenario() -> None:
        client = EngineClient(PATIENCE_S)
        async with scripted() as engine:
            for wanted, (_, _, _, then, cancel_after) in zip(scripts, answers, strict=True):
                engine.scripts = [wanted]
                got = await one(client, engine.url, then, cancel_after)
                assert got.violations == []
                assert got.ending in TOLD or got.call.listener is None
                await soon("every connection is idle or closed", lambda: client.busy_connections == 0)
            engine.scripts = []
            last = post(client, endpoint(engine.url), fresh=True)
            assert (await last.outcome(), last.status, last.body) == ("end", 200, b"ok")
            await client.close()
            await soon("the engine is rid of all", lambda: not engine.peers)
        assert (client.open_connections, client.idle_connections, client.connecting_requests) == (0, 0, 0)

    on("uvloop", scenario)


@settings(max_examples=campaign_count(50, 3_000))
@given(st.sampled_from(VALID), st.lists(st.integers(1, 250), max_size=30))
def test_cuts_change_nothing_of_a_valid_answer(answer: bytes, places: list[int]) -> None:
    results = []

    async def scenario() -> None:
        client = EngineClient(PATIENCE_S)
        async with scripted(script(answer, "close"), script(answer, "close", cuts=places)) as engine:
            for _ in range(2):
                got = post(client, endpoint(engine.url), fresh=True)
                assert await got.outcome() == "end"
                results.append((got.status, got.headers, got.body))
            await client.close()

    on("uvloop", scenario)
    assert results[0] == results[1]


@pytest.mark.parametrize("kind", ["delete", "duplicate", "flip", "insert"])
def test_edits_change_answers(kind: str) -> None:
    assert Edit(kind, 3, 2, b"xy").of(b"abcdefgh") != b"abcdefgh"
