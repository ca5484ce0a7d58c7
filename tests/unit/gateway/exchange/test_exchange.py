"""Every pair of states of an exchange, decided by hand."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from contract.errors import RoundhouseError
from contract.routing import Endpoint, ModelRoute, RoutingTable
from contract.status import ModelState
from gateway.admission.fair_queue import MOST_OVERTAKEN
from gateway.exchange.admission_stage import AdmissionStage
from gateway.exchange.dispatcher import InferenceDispatcher
from gateway.exchange.exchange import Exchange
from gateway.exchange.hooks import (
    NEXT_STATES,
    NO_HOOKS,
    WAITING_STATES,
    AnswerForm,
    ApiSpec,
    ExchangeHooks,
    ExchangeState,
    Pause,
)
from gateway.exchange.inner_requests import RoundClient
from gateway.exchange.services import Services
from gateway.exchange.stored_end import ObjectWrite
from gateway.protocols.common.errors import CACHE_EXHAUSTED
from gateway.server.call import ClientCall
from gateway.settings import GatewaySettings
from gateway.tenancy.api_keys import ANONYMOUS
from gateway.upstream.connection import EngineBrokenError, EngineRefusedError
from tests.fakes.fake_client import FakeConnection
from tests.fakes.fake_controller import route
from tests.fakes.fake_engine_client import FakeEngineCall, FakeEngineClient
from tests.fakes.gateway_harness import assemble_gateway
from tests.support.outcomes import present

pytestmark = pytest.mark.interpreted

# From a state in a row to a state in a column, in the order of the enum.
TABLE = """
             OPENED PREPARING QUEUED LOADING HELD SENT ANSWERING ENDED
OPENED       -      yes       -      -       -    -    -         yes
PREPARING    -      yes       yes    yes     yes  yes  -         yes
QUEUED       -      -         -      yes     yes  yes  -         yes
LOADING      -      -         yes    -       yes  yes  -         yes
HELD         -      -         yes    yes     yes  yes  -         yes
SENT         -      -         yes    yes     yes  yes  yes       yes
ANSWERING    -      -         yes    yes     yes  yes  -         yes
ENDED        -      -         -      -       -    -    -         -
"""
HEAD, *ROWS = [line.split() for line in TABLE.strip().splitlines()]
LEGAL = {(row[0], name) for row in ROWS for name, cell in zip(HEAD, row[1:], strict=True) if cell == "yes"}


def test_the_table_has_every_state_and_whatever_waits_can_be_given_a_slot() -> None:
    assert HEAD == [row[0] for row in ROWS] == [state.name for state in ExchangeState]
    assert set(NEXT_STATES) == set(ExchangeState)
    for state in WAITING_STATES:
        assert {ExchangeState.SENT, ExchangeState.ENDED} <= NEXT_STATES[state]


@pytest.mark.parametrize(("before", "after"), list(product(ExchangeState, repeat=2)), ids=lambda state: state.name)
def test_an_exchange_makes_only_legal_transitions(before: ExchangeState, after: ExchangeState) -> None:
    exchange = Exchange.__new__(Exchange)  # of which only the state is there
    exchange.state = before
    if (before.name, after.name) in LEGAL:
        exchange.move_to(after)
        assert exchange.state is after
    else:
        with pytest.raises(AssertionError, match=f"{before.name} to {after.name}"):
            exchange.move_to(after)
        assert exchange.state is before


CHAT = ApiSpec("/v1/chat/completions", streams=True, scope="inference")
URLS = ("http://127.0.0.1:1", "http://127.0.0.1:2")
REFUSED = RoundhouseError("invalid_request", "A hook refuses this.")


@dataclass
class Site:
    """A gateway whose engines and clients are fakes."""

    services: Services
    engines: FakeEngineClient
    seq: int = 0

    def publish(self, *models: ModelRoute) -> None:
        """Put a table with these models in force."""
        self.seq += 1
        table = {"instance": "i", "stamp": {"epoch": 1, "seq": self.seq}, "models": models}
        self.services.live.apply_table(RoutingTable.model_validate(table))

    def open(self, hooks: ExchangeHooks, **fields: Any) -> Client:
        """A request for a chat completion with these hooks."""
        connection = FakeConnection()
        call = ClientCall(
            connection,  # type: ignore[arg-type]
            lambda _: exchange,
            b"POST",
            CHAT.path.encode(),
            b"",
            [],
            keep_alive=True,
            is_http_1_1=True,
        )
        call.body_complete = True
        exchange = Exchange(CHAT, call, self.services, "req-1", hooks)
        call.handler = exchange
        exchange.set_caller(ANONYMOUS)
        exchange.take_body(
            json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}], **fields}).encode()
        )
        return Client(connection, exchange)

    @property
    def engine_call(self) -> FakeEngineCall:
        """The last request to an engine."""
        return self.engines.calls[-1]


@dataclass
class Client:
    """One client and its exchange."""

    connection: FakeConnection
    exchange: Exchange

    @property
    def error_code(self) -> str:
        return str(self.connection.error["code"])


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Two replicas with one slot each."""
    gateway = assemble_gateway(GatewaySettings(state=tmp_path))
    services, engines = gateway.inference._services, FakeEngineClient()
    services = replace(services, engines=engines)  # type: ignore[arg-type]
    made = Site(services, engines)
    made.services.live.on_table = lambda routes: services.grants.grant_slots(
        services.admission.apply_table(routes, services.now())
    )
    made.publish(route("m", URLS, target_inflight=1))
    return made


def publish_state(site: Site, state: ModelState, *urls: str) -> None:
    """A table in which the model is in this state, and what waits has seen it."""
    site.publish(route("m", urls, state=state, autoload=True, target_inflight=1))
    for ticket in site.services.admission.waiting_tickets("m"):
        ticket.owner.follow_table()


def recording(seen: list[str]) -> ExchangeHooks:
    """A hook of each kind, which notes its call."""

    def note(kind: str, answer: Any = None) -> Any:
        def hook(exchange: Exchange, *_: Any) -> Any:
            seen.append(f"{kind} in {exchange.state.name}")
            return answer

        return hook

    def shape(exchange: Exchange, form: AnswerForm) -> AnswerForm:
        seen.append(f"shape_answer in {exchange.state.name}")
        return form

    return ExchangeHooks(
        on_request=(note("on_request"),),
        before_admission=(note("before_admission", answer=False),),
        on_admitted=(note("on_admitted"),),
        before_send=(note("before_send"),),
        shape_answer=(shape,),
        on_event=(lambda part: seen.append(part.decode().split("\n")[0][:6]),),
        on_end=(note("on_end"),),
    )


BEFORE_THE_ENGINE = [
    *("on_request in PREPARING", "before_admission in PREPARING", "on_admitted in PREPARING"),
    *("before_send in PREPARING", "shape_answer in SENT"),
]


async def test_the_order_of_the_kinds(site: Site) -> None:
    seen: list[str] = []
    client = site.open(recording(seen), stream=True)
    assert seen == BEFORE_THE_ENGINE
    site.engine_call.begin_stream("Hello")
    client.exchange.run_due(site.services.now() + 11)
    site.engine_call.end_stream()
    assert seen[len(BEFORE_THE_ENGINE) :] == ["data: ", ": ka", "data: ", "on_end in ENDED"]
    assert client.exchange.hooks is NO_HOOKS


async def test_a_wait_in_the_queue_is_noted_when_it_begins_and_with_each_table(site: Site) -> None:
    seen: list[str] = []

    def note(exchange: Exchange, route: ModelRoute) -> None:
        assert present(exchange.admission).ticket is not None
        seen.append(f"{exchange.state.name} {route.state.value}")

    publish_state(site, ModelState.LOADED, URLS[0])
    site.open(NO_HOOKS)
    site.open(ExchangeHooks(on_wait=(note,)))
    publish_state(site, ModelState.LOADING)
    publish_state(site, ModelState.LOADED, URLS[0])
    assert seen == ["QUEUED loaded", "LOADING loading", "QUEUED loaded"]
    site.engine_call.begin_stream("x")
    site.engine_call.end_stream()
    assert len(seen) == 3


async def test_each_attempt_is_prepared_anew(site: Site) -> None:
    seen: list[str] = []
    site.open(recording(seen))
    site.engine_call.listener.engine_failed(EngineRefusedError("refused"))
    assert [call.replica for call in site.engines.calls] == ["m-0", "m-1"]
    assert seen == [*BEFORE_THE_ENGINE, "before_send in SENT", "shape_answer in SENT"]


async def test_a_hook_that_fails_at_the_end_hinders_no_other(site: Site) -> None:
    seen: list[str] = []
    client = site.open(ExchangeHooks(on_end=(refuse, *recording(seen).on_end)))
    client.exchange.fail_request(REFUSED)
    assert seen == ["on_end in ENDED"]


async def test_what_admission_refuses_is_not_noted_as_admitted(site: Site) -> None:
    site.publish(route("m", URLS[:1], target_inflight=1, queue_limit=0))
    site.open(NO_HOOKS)
    seen: list[str] = []
    assert site.open(recording(seen)).error_code == "queue_full"
    assert seen == ["on_request in PREPARING", "before_admission in PREPARING", "on_end in ENDED"]
    seen.clear()
    assert site.open(recording(seen), model="another").error_code == "unknown_model"
    assert seen == ["on_end in ENDED"]


def refuse(*_: Any) -> Any:
    raise REFUSED


@pytest.mark.parametrize("kind", ["on_request", "before_admission", "on_admitted", "before_send", "shape_answer"])
async def test_a_hook_may_refuse(site: Site, kind: str) -> None:
    seen: list[str] = []
    client = site.open(ExchangeHooks(**{kind: (refuse,)}) + ExchangeHooks(on_end=recording(seen).on_end))
    assert (client.error_code, seen, site.engines.calls) == ("invalid_request", ["on_end in ENDED"], [])
    assert not site.services.admission.slots_in_use


async def test_a_hook_answers_instead_of_an_engine(site: Site) -> None:
    def answer(exchange: Exchange) -> bool:
        exchange.set_header_lines(exchange.services.now())
        exchange.answer.send_whole(200, b"content-type: text/plain\r\n", b"mine")
        exchange.close()
        return True

    client = site.open(ExchangeHooks(before_admission=(answer, refuse)))
    assert (client.connection.status, client.connection.body) == (200, b"mine")
    assert not site.engines.calls


# Pauses


def pause_on(future: asyncio.Future[Any], then: Any = None) -> Any:
    return lambda *_: Pause(future, then)


def new_future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


async def test_each_pause_of_the_preparation_is_waited_for_in_turn(site: Site) -> None:
    first, second, seen = new_future(), new_future(), list[Any]()
    hooks = ExchangeHooks(on_request=(pause_on(first, seen.append), pause_on(second, seen.append)))
    client = site.open(hooks)
    for future, result in ((first, 1), (second, 2)):
        assert client.exchange.state is ExchangeState.PREPARING
        future.set_result(result)
        await asyncio.sleep(0)
    assert (client.exchange.state, seen) == (ExchangeState.SENT, [1, 2])


async def test_a_slot_is_held_while_a_hook_waits_before_sending(site: Site) -> None:
    future = new_future()
    client = site.open(ExchangeHooks(before_send=(pause_on(future),)))
    assert client.exchange.state is ExchangeState.HELD
    assert site.services.admission.slots_in_use == {"m-0": 1}
    assert not site.engines.calls
    future.set_result(None)
    await asyncio.sleep(0)
    assert (client.exchange.state, site.engine_call.replica) == (ExchangeState.SENT, "m-0")


async def test_a_replica_that_leaves_the_table_while_a_hook_waits_is_not_asked(site: Site) -> None:
    futures, asked = [new_future(), new_future()], list[str]()

    def wait(_exchange: Exchange, _route: ModelRoute, endpoint: Endpoint) -> Pause | None:
        asked.append(endpoint.base_url)
        return Pause(futures[len(asked) - 1]) if len(asked) <= len(futures) else None

    publish_state(site, ModelState.LOADED, URLS[0])
    held = site.open(ExchangeHooks(before_send=(wait,)))
    publish_state(site, ModelState.LOADED, URLS[1])  # a replica of the same name, elsewhere
    futures[0].set_result(None)
    await asyncio.sleep(0)
    assert (held.exchange.state, asked, site.engines.calls) == (ExchangeState.HELD, list(URLS), [])
    publish_state(site, ModelState.UNLOADED)
    futures[1].set_result(None)
    await asyncio.sleep(0)
    assert (held.exchange.state, site.services.admission.slots_in_use) == (ExchangeState.LOADING, {})
    publish_state(site, ModelState.LOADED, URLS[0])
    assert (held.exchange.state, asked[2:]) == (ExchangeState.SENT, [URLS[0]])
    assert site.services.admission.slots_in_use == {"m-0": 1}


async def test_a_held_request_whose_tokens_others_need_is_queued_and_then_sent_once(site: Site) -> None:
    """It loses nothing, and is not refused in the place of one that an engine answers."""
    model = route("m", URLS[:1], target_inflight=2)
    [endpoint] = model.endpoints
    site.publish(model.model_copy(update={"endpoints": (endpoint.model_copy(update={"kv_cache_tokens": 1024}),)}))
    running = site.open(NO_HOOKS, stream=True)
    futures, asked = [new_future(), new_future()], list[str]()

    def wait(_exchange: Exchange, _route: ModelRoute, endpoint: Endpoint) -> Pause:
        asked.append(endpoint.base_url)
        return Pause(futures[len(asked) - 1])

    held = site.open(ExchangeHooks(before_send=(wait,)), stream=True)
    assert held.exchange.state is ExchangeState.HELD
    site.engine_call.begin_stream(*["x"] * 1000)
    assert (running.exchange.state.name, held.exchange.state.name) == ("ANSWERING", "QUEUED")
    site.engine_call.end_stream()
    assert (held.exchange.state.name, len(asked)) == ("HELD", 2)
    futures[0].set_result(None)
    await asyncio.sleep(0)
    assert (held.exchange.state.name, len(site.engines.calls)) == ("HELD", 1), "that pause was of the slot it lost"
    futures[1].set_result(None)
    await asyncio.sleep(0)
    assert (held.exchange.state.name, len(site.engines.calls)) == ("SENT", 2)


@pytest.mark.parametrize("change", [{"token": "sk-2"}, {"replica": "m-1"}, {"kv_cache_tokens": 4096}])
async def test_a_held_request_is_sent_to_its_replica_as_the_table_has_it_then(
    site: Site, change: dict[str, Any]
) -> None:
    """Another token or name is another engine, and admission is asked again; other figures are not."""
    publish_state(site, ModelState.LOADED, URLS[0])
    future, seen = new_future(), list[Endpoint]()

    def wait(_exchange: Exchange, _route: ModelRoute, endpoint: Endpoint) -> Pause | None:
        seen.append(endpoint)
        return Pause(future)

    hooks = ExchangeHooks(before_send=(wait, lambda _exchange, _route, endpoint: seen.append(endpoint)))
    client = site.open(hooks)
    model = route("m", URLS[:1], target_inflight=1)
    changed = model.endpoints[0].model_copy(update=change)
    site.publish(model.model_copy(update={"endpoints": (changed,)}))
    future.set_result(None)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    is_same = "kv_cache_tokens" in change
    assert (client.exchange.state.name, seen[1:]) == ("SENT", [changed] * (1 if is_same else 2))


@pytest.mark.parametrize("kind", ["on_request", "before_send"])
async def test_a_pause_ends_with_the_model_as_it_is_then(site: Site, kind: str) -> None:
    future = new_future()
    client = site.open(ExchangeHooks(**{kind: (pause_on(future),)}))
    site.publish(route("other", URLS[:1]))
    future.set_result(None)
    await asyncio.sleep(0)
    assert client.error_code == "unknown_model"
    assert not site.services.admission.slots_in_use


@pytest.mark.parametrize(
    ("error", "code"),
    [(RoundhouseError("response_not_found", "Gone."), "response_not_found"), (None, "invalid_request")],
    ids=["the pause", "what follows it"],
)
async def test_an_error_of_a_pause_ends_the_request(site: Site, error: RoundhouseError | None, code: str) -> None:
    future = new_future()
    client = site.open(ExchangeHooks(on_request=(pause_on(future, refuse),)))
    future.set_exception(error) if error else future.set_result(None)
    await asyncio.sleep(0)
    assert client.error_code == code


@pytest.mark.parametrize("kind", ["on_request", "before_send"])
@pytest.mark.parametrize("fails", [False, True])
async def test_a_pause_that_outlasts_its_request_is_dropped(site: Site, kind: str, fails: bool) -> None:
    future, seen = new_future(), list[str]()
    hooks = ExchangeHooks(**{kind: (pause_on(future, refuse),)}) + ExchangeHooks(on_end=recording(seen).on_end)
    client = site.open(hooks)
    client.exchange.client_gone()
    assert seen == ["on_end in ENDED"]
    if fails:
        future.set_exception(REFUSED)
    else:
        future.set_result(None)
    await asyncio.sleep(0)
    assert (client.connection.written, site.engines.calls) == (b"", [])
    assert not site.services.admission.slots_in_use


async def test_a_stream_is_kept_alive_while_a_counted_request_waits_for_a_hook(site: Site) -> None:
    future = new_future()

    def count_and_wait(exchange: Exchange, _: ModelRoute) -> Pause:
        exchange.count_request()
        return Pause(future)

    client = site.open(ExchangeHooks(on_request=(count_and_wait,)), stream=True)
    client.exchange.run_due(site.services.now() + 11)
    assert client.connection.head["x-request-id"] == "req-1"
    assert client.connection.body == b": ka\n\n"


async def test_a_client_that_left_while_its_answer_is_stored_gets_no_heartbeat(site: Site) -> None:
    write = ObjectWrite(lambda: None)
    keeper = SimpleNamespace(begin_write=lambda last_part: write if b"DONE" in last_part else None)
    client = site.open(
        ExchangeHooks(on_admitted=(lambda exchange: exchange.hold_end(cast("Any", keeper)),)), stream=True
    )
    site.engine_call.begin_stream("one")
    site.engine_call.end_stream()
    told = client.connection.written
    client.exchange.client_gone()
    client.exchange.run_due(site.services.now() + 11)
    assert (client.exchange.is_ended, client.connection.written) == (False, told)
    write.done.set_result(None)
    await asyncio.sleep(0)
    assert (client.exchange.is_ended, client.connection.written) == (True, told)


async def test_what_came_of_a_stream_that_a_full_cache_ended_counts(site: Site) -> None:
    settled: list[Any] = []
    client = site.open(NO_HOOKS, stream=True)
    entry = SimpleNamespace(settle_request=lambda _now, used, **told: settled.append((used, told)))
    client.exchange.account.entry = cast("Any", entry)
    site.engine_call.begin_stream("one", "two", "three")
    site.engine_call.listener.engine_data(b'data: {"error":{"code":500,"message":"%b"}}\n\n' % CACHE_EXHAUSTED.encode())
    site.engine_call.listener.engine_end()
    assert client.exchange.answer.broken_off_code == "kv_cache_exhausted"
    assert settled == [(None, {"was_sent": True, "is_failed": False, "passed_tokens": 3})]
    assert client.exchange.account.attempts == 1


async def test_a_client_that_is_full_slows_the_attempts_that_follow_too(site: Site) -> None:
    publish_state(site, ModelState.LOADED, URLS[0])
    client = site.open(NO_HOOKS, stream=True)
    first = site.engine_call
    client.exchange.client_full()
    assert first.is_paused
    first.listener._is_kept_connection = True
    first.listener.engine_failed(EngineBrokenError())  # sent again at once
    assert (site.engine_call is not first, site.engine_call.is_paused) == (True, True)
    publish_state(site, ModelState.LOADED, *URLS)
    site.engine_call.listener.engine_failed(EngineRefusedError("refused"))  # by another replica
    assert (site.engine_call.replica, site.engine_call.is_paused) == ("m-1", True)
    client.exchange.client_ready()
    assert not site.engine_call.is_paused


async def test_a_client_that_was_full_before_an_engine_was_asked_slows_it_down(site: Site) -> None:
    future = new_future()
    client = site.open(ExchangeHooks(on_request=(pause_on(future),)), stream=True)
    client.exchange.client_full()
    future.set_result(None)
    await asyncio.sleep(0)
    assert site.engine_call.is_paused
    client.exchange.client_ready()
    assert not site.engine_call.is_paused


async def test_an_answer_that_the_gateway_fails_on_is_no_fault_of_its_replica(site: Site) -> None:
    def fail(part: bytes) -> None:
        if b"two" in part:
            raise KeyError("a defect")

    client = site.open(ExchangeHooks(on_event=(fail,)), stream=True)
    site.engine_call.begin_stream("one", "two")
    assert (client.exchange.is_ended, site.engine_call.is_cancelled) == (True, True)
    assert client.exchange.answer.broken_off_code == "internal_error"
    assert b"internal_error" in client.connection.body


async def test_a_recorder_that_fails_at_an_error_keeps_no_slot(site: Site) -> None:
    def fail(_part: bytes) -> None:
        raise KeyError("a defect")

    def record(exchange: Exchange, *_: Any) -> None:
        exchange.add_hooks(ExchangeHooks(on_event=(fail,)))

    client = site.open(NO_HOOKS, stream=True)
    site.engine_call.begin_stream("one")
    record(client.exchange)
    client.exchange.fail_request(REFUSED)
    assert (client.exchange.is_ended, site.services.admission.slots_in_use) == (True, {})
    assert not client.connection.transport.is_open, "its answer has no end"


async def test_header_lines_that_fail_keep_no_slot(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    future = new_future()
    client = site.open(ExchangeHooks(before_send=(pause_on(future),)))
    client.exchange.answer.lines = b""
    monkeypatch.setattr(Exchange, "set_header_lines", lambda *_: dict[str, None]()["a defect"])
    client.exchange.fail_request(REFUSED)
    assert (client.exchange.is_ended, site.services.admission.slots_in_use) == (True, {})
    assert not client.connection.transport.is_open


# What hooks may do


async def test_every_part_of_a_stream_is_kept_before_the_client_gets_it(site: Site) -> None:
    kept = bytearray()

    def keep(part: bytes) -> None:
        kept.extend(part)
        assert part not in client_body()

    client = site.open(ExchangeHooks(on_event=(keep,)), stream=True)

    def client_body() -> bytes:
        return client.connection.body if client.connection.written else b""

    site.engine_call.begin_stream("one", "two")
    client.exchange.run_due(site.services.now() + 11)
    client.exchange.fail_request(REFUSED)
    assert bytes(kept) == client.connection.body
    assert b"invalid_request" in kept


async def test_an_exchange_that_outlives_its_client_goes_on(site: Site) -> None:
    kept = [bytearray(), bytearray()]

    def outlive(exchange: Exchange) -> None:
        exchange.outlives_client = True
        exchange.add_hooks(ExchangeHooks(on_event=(kept[1].extend,)))

    client = site.open(ExchangeHooks(on_admitted=(outlive,), on_event=(kept[0].extend,)), stream=True)
    site.engine_call.begin_stream("one")
    client.exchange.client_full()
    told = client.connection.body
    client.exchange.client_gone()
    assert not site.engine_call.is_paused
    site.engine_call.send_chunk("two")
    site.engine_call.end_stream()
    assert (client.exchange.is_ended, client.connection.body, kept[0]) == (True, told, kept[1])
    assert kept[0].startswith(told)
    assert kept[0].endswith(b"data: [DONE]\n\n")


async def test_hooks_that_a_hook_adds_are_called_in_their_turn_and_a_request_is_counted_once(site: Site) -> None:
    seen: list[str] = []

    def add(exchange: Exchange, _: ModelRoute) -> None:
        exchange.add_hooks(recording(seen))

    client = site.open(ExchangeHooks(on_request=(add,)), stream=True)
    assert seen == BEFORE_THE_ENGINE[1:], "the time of on_request has come"
    client.exchange.client_gone()
    assert seen[-1] == "on_end in ENDED"
    counted = list[float]()

    def count(exchange: Exchange, _: ModelRoute) -> None:
        counted.extend((exchange.count_request(), exchange.count_request()))
        assert exchange.account.is_counted

    client = site.open(ExchangeHooks(on_request=(count,)))
    assert len(counted) == 2
    assert client.exchange.state is ExchangeState.SENT


async def test_a_wait_for_a_load_is_a_state(site: Site) -> None:
    publish_state(site, ModelState.UNLOADED)
    first, second = site.open(NO_HOOKS).exchange, site.open(NO_HOOKS).exchange
    assert [first.state.name, second.state.name] == ["LOADING", "LOADING"]
    assert first.due_at == getattr(first.load_wait, "deadline", None)
    publish_state(site, ModelState.LOADED, URLS[0])
    assert [first.state.name, second.state.name] == ["SENT", "QUEUED"]
    assert [first.load_wait, second.load_wait] == [None, None]
    publish_state(site, ModelState.UNLOADED)
    assert second.state.name == "LOADING"


async def test_a_table_that_ends_one_wait_lets_the_next_be_served(site: Site) -> None:
    """The request that ends gives its place to one that waits, too, as the table is gone through."""
    InferenceDispatcher((), site.services, cast("Any", None), lambda: "req-2")  # follows tables from now on
    site.publish(route("m", URLS[:1], target_inflight=2))
    site.open(NO_HOOKS)
    large = site.open(NO_HOOKS, n=2)
    for _ in range(MOST_OVERTAKEN):
        site.open(NO_HOOKS)
        site.engine_call.begin_stream("x")
        site.engine_call.end_stream()
    small = site.open(NO_HOOKS, stream=True)
    states = [client.exchange.state.name for client in (large, small)]
    assert states == ["QUEUED", "QUEUED"], "a replica is kept for the large one"
    site.publish(route("m", URLS[:1], target_inflight=2, max_choices=1))
    assert large.error_code == "invalid_request"
    assert small.exchange.state.name == "SENT"
    site.engine_call.begin_stream("x")
    site.engine_call.end_stream()
    assert small.connection.status == 200


def test_others_get_their_slots_even_if_the_request_is_refused_on_its_way_out() -> None:
    granted: list[str] = []
    services = SimpleNamespace(
        now=lambda: 1.0,
        admission=SimpleNamespace(retry_ticket=lambda *_, **__: ("an endpoint", ["a grant"])),
        grants=SimpleNamespace(grant_slots=granted.extend),
    )
    route = SimpleNamespace(state=ModelState.LOADED)
    exchange = SimpleNamespace(
        services=services,
        renew_route=lambda: route,
        hooks=ExchangeHooks(before_send=(cast("Any", refuse),)),
        engine=object(),
        load_wait=None,
        api=SimpleNamespace(names_replica=False),
        client=SimpleNamespace(query=b""),
    )
    stage = AdmissionStage(cast("Any", exchange))
    stage._checked_route = cast("Any", route)
    stage.ticket = cast("Any", object())
    with pytest.raises(RoundhouseError, match="A hook refuses this"):
        stage.retry_request("m-0", is_refused=True)
    assert granted == ["a grant"]


class Recorder:
    """In the place of a handler, and of the client's exchange."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.client: Any = self
        self.handler: Any = self
        self.is_client_full = False

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.told.append(name)


def test_the_pace_of_the_client_is_the_rounds() -> None:
    """A client that reads slowly slows the round down that is under way, and the next one too."""
    exchange, first, second = Recorder(), Recorder(), Recorder()
    client = RoundClient(exchange)  # type: ignore[arg-type]
    client.follow_client()
    assert exchange.handler is client
    client.begin_round(first)
    assert first.told == []
    client.client_full()
    client.end_round(first)
    client.client_full()
    client.begin_round(second)
    client.client_ready()
    assert (first.told, second.told) == (["client_full"], ["client_full", "client_ready"])
    client.client_gone()
    client.let_go()
    assert (exchange.told, exchange.handler is None) == (["client_gone"], True)
    # Another handler of the call stays.
    client.follow_client()
    exchange.is_client_full = True  # since before the rounds
    exchange.handler, third = exchange, Recorder()
    client.follow_client()
    client.begin_round(third)
    assert third.told == ["client_full"]
    exchange.handler = other = object()
    client.follow_client()
    client.let_go()
    assert exchange.handler is other
