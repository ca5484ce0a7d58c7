"""The chaos campaign: its verdict, and its clients, which must see what is wrong, cut and doubled."""

from __future__ import annotations

import itertools
import json
import os
import random
import secrets
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from aiohttp import web

from contract.errors import ERROR_CODES
from controller.runtimes.process.groups import START_ENV, read_stat
from controller.runtimes.process.launch import ReplicaRecord, mark_variables
from tests.support.chaos.clients import (
    GATEWAYS_MARK,
    CheckedClients,
    Ended,
    Outcome,
    Refusal,
    SilentEndError,
    WrongAnswerError,
    check_stream,
    check_whole,
)
from tests.support.chaos.faults import KINDS
from tests.support.chaos.play import Kind, shuffled
from tests.support.chaos.verdict import (
    GATEWAY_AWAY,
    INSIDE,
    RESTARTING,
    STABLE_S,
    STOPPED,
    UNLOADED,
    Fault,
    Kill,
    Record,
    back_rows,
    counts,
    fault_rows,
    find_failures,
    lost_rows,
    make_outcome,
    must_be_zero,
    refused_while_whole,
    spread,
    unexcused,
)
from tests.support.ports import free_port
from tests.support.process_engines import what_is_wrong_with_engines
from tests.support.roundhouse_stack import SENTENCE
from tests.support.wait import until

LONG = max(STABLE_S.values())


def _lost(outcome: str, *, model: str = "one", began: float = 10.5, ended: float = 10.6) -> Ended:
    return Ended(model, True, began, ended, outcome)


def _engine_fault() -> Fault:
    """The only engine of `one` is killed at 10, and its model answers again at 11."""
    fault = Fault("engine killed", 10.0, 12.0, [Kill("engine", 10.0, LONG, True, 1, back_s=1.0, start_s=0.5)])
    fault.allow({"one"}, INSIDE, 10.0, 10.01)
    fault.allow({"one"}, RESTARTING, 10.0, 11.0)
    return fault


DISCONNECTED = "refused: engine_disconnected"


@pytest.mark.parametrize(
    ("lost", "is_excused"),
    [
        (_lost(DISCONNECTED, began=9.9), True),
        (_lost("refused: model_loading"), True),
        (_lost("refused: model_loading", began=11.0, ended=11.5), True),
        (_lost("refused: model_loading", began=11.01, ended=11.5), False),
        (_lost(DISCONNECTED, began=9.0, ended=9.9), False),
        (_lost(DISCONNECTED, model="two"), False),
        (_lost("refused: queue_full"), False),
        (_lost(Outcome.CUT), False),
    ],
)
def test_a_lost_request_is_excused_by_model_time_and_how_it_ended(lost: Ended, is_excused: bool) -> None:
    record = Record([_engine_fault()], [lost], 5)
    assert unexcused(record) == ([] if is_excused else [lost])
    failures = find_failures(record, 1)
    assert [text.partition("\n")[0] for text in failures] == (
        [] if is_excused else ["requests lost outside what was killed: 1"]
    )


@pytest.mark.parametrize("outcome", [Outcome.WRONG, Outcome.SILENT, Outcome.HANGING])
def test_no_fault_excuses_what_is_wrong_silent_or_hanging(outcome: Outcome) -> None:
    fault = _engine_fault()
    fault.allow(None, {outcome.value}, 0.0, 100.0)
    record = Record([fault], [_lost(outcome)], 5)
    assert unexcused(record) == []
    assert [text.partition("\n")[0] for text in find_failures(record, 1)] == [f"{outcome.value} answers: 1"]
    assert dict(must_be_zero(record))[f"{outcome.value} answers"] == 1


def test_a_gateway_that_is_away_excuses_every_model() -> None:
    fault = Fault("gateway killed", 10.0, 13.0)
    fault.allow(None, GATEWAY_AWAY, 10.0, 12.0)
    lost = [_lost(Outcome.CUT), _lost(Outcome.NOT_CONNECTED, model="two"), _lost("refused: controller_unavailable")]
    assert unexcused(Record([fault], lost)) == []


def test_a_record_without_fault_fails_nothing_and_each_figure_that_must_be_zero_fails() -> None:
    record = Record([_engine_fault()], [], 5)
    assert find_failures(record, 1) == []
    assert {value for _, value in must_be_zero(record)} == {0}
    for title, fault in (
        ("engines that are not as declared after", replace(_engine_fault(), engine_troubles=["orphan"])),
        ("engines restarted that were not touched by", replace(_engine_fault(), restarted=["rh-a"])),
    ):
        [failure] = find_failures(Record([fault]), 1)
        assert failure.partition("\n")[0] == f"{title}: engine killed: 1"
        assert 1 in [value for _, value in must_be_zero(Record([fault]))]
    [failure] = find_failures(replace(record, left=["a process"]), 1)
    assert failure == "left after `down`: 1\na process"
    assert find_failures(record, 2) == ["1 kills instead of 2"]
    assert find_failures(replace(record, broke="AssertionError"), 1) == ["it broke off\nAssertionError"]


def test_a_lost_request_is_told_beside_its_fault() -> None:
    lost = [_lost("refused: queue_full"), _lost("refused: queue_full", began=1.0, ended=2.0)]
    [failure] = find_failures(Record([_engine_fault()], lost), 1)
    assert failure.splitlines()[1:] == [
        "one, streaming, refused: queue_full; fault `engine killed`: began at +0.500 s, ended at +0.600 s, "
        "engine killed at +0.000 s, whole at +2.000 s",
        "one, streaming, refused: queue_full, before the first fault",
    ]


def test_a_bound_that_does_not_hold_is_a_failure() -> None:
    slow = replace(_engine_fault().kills[0], back_s=2.0)
    gateway = Kill("gateway", 20.0, LONG, True, back_s=2.5)
    fault = Fault("many", 10.0, 30.0, [_engine_fault().kills[0], slow, gateway])
    record = Record([fault], [], 5)
    assert find_failures(record, 3) == ["bound of routing back: engine, its model's only one: no: 1 of 2 took longer"]
    engines, gateways = back_rows(record)
    assert engines == (
        *("engine, its model's only one", 2, "0.50 s", "1.00 s", "2.00 s", "2.00 s"),
        *("0.50 s", "1.50 s", "1.50 s", "its start + 1 s", "no: 1 of 2 took longer"),
    )
    assert gateways == (*("gateway", 1, "", "2.50 s", "2.50 s", "2.50 s", "", "", "", "3 s", "yes"),)


def test_bounds_are_for_kills_alone_of_who_had_run_long_enough() -> None:
    engine = _engine_fault().kills[0]
    kills = [
        replace(engine, is_alone=False),
        replace(engine, back_s=None),
        replace(engine, ran_s=STABLE_S["engine"] - 1),
        replace(engine, replicas=2),
        Kill("gateway", 20.0, STABLE_S["gateway"] - 1, True, back_s=9.0),
    ]
    rows = back_rows(Record([Fault("many", 10.0, 30.0, kills)]))
    assert [(row[0], row[-2]) for row in rows] == [
        ("the same, when it had run for less than a minute", ""),
        ("engine, another of its model stands by", "its start + 1 s"),
        ("the same, when it had run for less than 10 s", ""),
    ]


def test_the_tables_count_kills_faults_and_lost_requests() -> None:
    again = replace(_engine_fault(), ended=None)
    record = Record([_engine_fault(), again], [_lost(DISCONNECTED), _lost(DISCONNECTED)], 5, loads=[0.5, 1.5, 4.0])
    assert dict(counts(record)) == {
        "kills": 2,
        "kills: engine": 2,
        "faults": 2,
        "requests": 7,
        "answers, each compared byte by byte": 5,
        "refused beside, while a fault lasted": 0,
        "requests that were lost to what was killed, unloaded or stopped": 2,
        "processes that wanted to run, per processor": "1.50",
    }
    assert fault_rows(record) == [("engine killed", 2, 2, "2.00 s", "2.00 s", "2.00 s")]
    assert lost_rows(record) == [("engine killed", DISCONNECTED, 2)]
    titles = [table.title for table in make_outcome(replace(record, left_out={"disk full": "no disk"}), 2).tables]
    assert titles[0] == "What must be 0"
    assert titles[-1] == "Left out"


@pytest.mark.parametrize(
    ("values", "expected"),
    [([], ("", "", "")), ([2.0], ("2.00 s",) * 3), ([*range(1, 101)], ("50.00 s", "95.00 s", "100.00 s"))],
)
def test_the_spread_is_median_95th_percentile_and_maximum(values: list[float], expected: tuple[str, ...]) -> None:
    assert spread(values) == expected


def test_what_was_acknowledged_is_kept_and_refusals_are_excused_by_faults_alone() -> None:
    fault = Fault("retrieval killed", 10.0, 20.0)
    inside, before = (Refusal("document", began, began + 1.0, "503") for began in (12.0, 5.0))
    record = Record([fault], refused=[inside, before], forgotten=["document d1: waited in vain"])
    assert refused_while_whole(record) == [before]
    expected = ["acknowledged and not kept", "documents, stored responses or tools refused while all was well"]
    assert [failure.partition(":")[0] for failure in find_failures(record, 0)] == expected


# The order of faults


def test_the_same_seed_strikes_in_the_same_order_and_each_round_has_every_kind() -> None:
    size = sum(kind.times for kind in KINDS)
    first, again, other = (
        [kind.name for kind in itertools.islice(shuffled(KINDS, random.Random(seed)), size)] for seed in (1, 1, 2)
    )
    assert first == again != other
    assert Counter(first) == {kind.name: kind.times for kind in KINDS}
    assert len({kind.name for kind in KINDS}) == len(KINDS)


def test_a_rare_kind_comes_in_some_rounds_only() -> None:
    kinds = [Kind("a", lambda *_: None), Kind("b", lambda *_: None, every=3)]
    rounds = [kind.name for kind in itertools.islice(shuffled(kinds, random.Random(1)), 10)]
    assert Counter(rounds) == {"a": 7, "b": 3}
    assert Counter(rounds[:2]) == Counter(rounds[4:6]) == {"a": 1, "b": 1}


def test_what_may_be_lost_are_codes_that_there_are() -> None:
    codes = {
        each.partition(": ")[2] for each in RESTARTING | INSIDE | UNLOADED | STOPPED if each.startswith("refused: ")
    }
    assert codes <= set(ERROR_CODES)


def _whole(text: str, finish: str = "stop") -> bytes:
    return json.dumps({"choices": [{"message": {"content": text}, "finish_reason": finish}]}).encode()


def _event(text: str, finish: str | None = None) -> bytes:
    return b"data: %b\n\n" % json.dumps({"choices": [{"delta": {"content": text}, "finish_reason": finish}]}).encode()


ERROR = json.dumps({"error": {"code": "engine_disconnected"}}).encode()
DONE = b"data: [DONE]\n\n"
RIGHT = _event(SENTENCE[:9]) + b": ka\n\n" + _event(SENTENCE[9:]) + _event("", "stop") + DONE


def test_a_right_answer_and_an_error_in_words() -> None:
    assert check_whole(200, _whole(SENTENCE)) == ""
    assert check_whole(502, ERROR) == "engine_disconnected"
    assert check_stream(RIGHT) == ""
    assert check_stream(_event(SENTENCE[:9]) + b"data: " + ERROR + b"\n\n") == "engine_disconnected"


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (200, _whole(SENTENCE[:-1]), WrongAnswerError),
        (200, _whole(SENTENCE + "!"), WrongAnswerError),
        (200, _whole(SENTENCE, "length"), WrongAnswerError),
        (200, _whole(SENTENCE)[:-1], SilentEndError),
        (200, ERROR, WrongAnswerError),
        (500, _whole(SENTENCE), WrongAnswerError),
        (200, b"", WrongAnswerError),
    ],
)
def test_a_wrong_whole_answer(status: int, body: bytes, error: type[WrongAnswerError]) -> None:
    with pytest.raises(error):
        check_whole(status, body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        RIGHT.removesuffix(DONE),
        RIGHT[:-1],
        _event(SENTENCE[:9]) + DONE,
        _event(SENTENCE) + DONE,
        _event(SENTENCE + "x", "stop") + DONE,
        _event("x") + b"data: " + ERROR + b"\n\n",
        b"data: {\n\n" + DONE,
    ],
)
def test_a_stream_that_is_wrong_is_noticed(body: bytes) -> None:
    with pytest.raises(WrongAnswerError):
        check_stream(body)


def test_what_came_before_a_cut_must_be_right_and_an_end_without_a_mark_is_silent() -> None:
    with pytest.raises(SilentEndError):
        check_stream(RIGHT.removesuffix(DONE))
    assert check_stream(RIGHT[:-30], is_cut=True) == "cut"
    with pytest.raises(WrongAnswerError):
        check_stream(_event("x"), is_cut=True)


@asynccontextmanager
async def _server(answer: bytes, *, cuts: bool, is_gateway: bool = True) -> AsyncIterator[str]:
    """Says this in a stream to everybody, and ends the body or breaks the connection."""
    marks = {GATEWAYS_MARK: "req-1"} if is_gateway else {}

    async def say(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream", **marks})
        await response.prepare(request)
        await response.write(answer)
        if cuts:
            assert request.transport is not None
            request.transport.abort()
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", say)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("answer", "cuts", "outcome"),
    [
        (_event("The"), True, Outcome.CUT),
        (_event("The"), False, Outcome.SILENT),
        (_event("x"), True, Outcome.WRONG),
        (b"data: {\n\n", False, Outcome.WRONG),
        (b"data: " + ERROR + b"\n\n", False, "refused: engine_disconnected"),
    ],
)
async def test_how_a_request_ended_is_told_with_its_times(answer: bytes, cuts: bool, outcome: str) -> None:
    began = time.monotonic()
    async with _server(answer, cuts=cuts) as url:
        clients = CheckedClients(url, ("m",))
        async with clients.running(2):
            await until("both asked", lambda: len(clients.lost) > 3)
    assert {each.outcome for each in clients.lost} == {outcome}
    assert all(began <= each.began <= each.ended <= time.monotonic() for each in clients.lost)
    assert {each.stream for each in clients.lost} == {True, False}
    assert clients.requests == len(clients.lost)
    assert bool(clients.wrong) is (outcome in (Outcome.SILENT, Outcome.WRONG))


async def test_who_is_no_gateway_is_not_its_answer_and_who_is_not_there_is_not_connected_to() -> None:
    clients = CheckedClients(f"http://127.0.0.1:{free_port()}", ("m",))
    async with clients.running(1):
        await until("it asked", lambda: clients.lost)
    assert {each.outcome for each in clients.lost} == {Outcome.NOT_CONNECTED}
    async with _server(b"denied destination", cuts=False, is_gateway=False) as url:
        clients = CheckedClients(url, ("m",))
        async with clients.running(1):
            await until("it asked", lambda: clients.lost)
    assert {each.outcome for each in clients.lost} == {Outcome.NOT_CONNECTED}
    assert "denied destination" in clients.lost[0].detail


async def test_the_first_answer_is_one_to_a_request_that_began_later() -> None:
    async with _server(RIGHT, cuts=False) as url:
        clients = CheckedClients(url, ("a", "b"))
        async with clients.running(4):
            after = time.monotonic()
            first = await clients.first_answer("b", after, 60)
            assert (first.model, first.outcome) == ("b", Outcome.ANSWERED)
            assert after < first.began <= first.ended
            assert (await clients.first_answer(None, first.ended, 60)).began > first.ended
            with pytest.raises(TimeoutError, match="no answer of c within 0 s"):
                await clients.first_answer("c", after, 0)


async def test_answers_are_counted_by_model() -> None:
    async with _server(RIGHT, cuts=False) as url:
        clients = CheckedClients(url, ("a", "b"))
        async with clients.running(4):
            await clients.answer_more(3)
        assert clients.wrong == []
        assert min(clients.answered["a"], clients.answered["b"]) >= 3
        assert clients.requests == clients.answered.total()


def test_missing_doubled_dead_and_orphaned_engines_are_seen() -> None:
    instance = f"t{secrets.token_hex(4)}"
    with subprocess.Popen(
        [sys.executable, "-c", "input()"],
        stdin=subprocess.PIPE,
        env=os.environ | mark_variables(instance, "rh-a", "first"),
    ) as engine:
        stat = read_stat(engine.pid)
        assert stat is not None
        record = ReplicaRecord.model_validate(
            {"instance": instance, "name": "rh-a", "model": "m", "index": 0, "spec_hash": "0" * 64, "attempt": 1}
            | {
                "start_id": "first",
                "boot_id": "boot",
                "host": "127.0.0.1",
                "port": 1,
                "argv": ("engine",),
                "claims": {},
            }
            | {"created_at": 0.0, "pid": engine.pid, "start_ticks": stat.process.start_ticks}
        )
        one = Counter(m=1)
        assert what_is_wrong_with_engines({"rh-a": record}, one) == []
        assert "instead of" in str(what_is_wrong_with_engines({}, one))
        assert "2 engines at" in str(what_is_wrong_with_engines({"rh-a": record, "rh-b": record}, Counter(m=2)))
        other = record.model_copy(update={"start_id": "second"})
        assert "orphan" in str(what_is_wrong_with_engines({"rh-a": other}, one))
        reused = record.model_copy(update={"start_ticks": stat.process.start_ticks + 1})
        assert "does not run" in str(what_is_wrong_with_engines({"rh-a": reused}, one))
        engine.kill()
    assert "does not run" in str(what_is_wrong_with_engines({"rh-a": record}, one))
    assert START_ENV in mark_variables(instance, "rh-a", "first")
