"""`GET /v1/responses` with Upgrade: responses over WebSocket. First Open Responses' own cases, by their names."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from openai.types.responses import ResponseInputItemParam
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import CloseCode

from assistant.hooks.response_session import LONGEST_S, MOST_WAITING, ResponseSession
from gateway.protocols.responses.items import INTRODUCTION
from gateway.server.call import ClientCall
from gateway.server.websocket import PING_S
from tests.fakes.fake_controller import route
from tests.fakes.mock_engine import WORDS
from tests.support import response_state
from tests.support.gateway_rest import nothing_left
from tests.support.loop_clock import LoopClock, loop_clock
from tests.support.queueing import key
from tests.support.raw_http import raw, request
from tests.support.response_state import Site, Socket, engine_is_paused, socket
from tests.support.responses import Fields, events_in
from tests.support.wait import until

__all__ = ["loop_clock"]

NOT_FOUND = "previous_response_not_found"
HANDSHAKE = ("connection: Upgrade", "upgrade: websocket", "sec-websocket-version: 13")
KEY = "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ=="


@pytest.fixture
async def client(site: Site) -> AsyncIterator[Socket]:
    async with socket(site.gateway) as client:
        yield client


async def closed(connection: Any) -> int:
    """The code with which the gateway closes it, whatever comes before."""
    with contextlib.suppress(ConnectionClosed):
        while True:
            await connection.recv()
    return int(connection.close_code)


def socket_of(site: Site) -> Any:
    """The gateway's side of it."""
    [connection] = [each for each in site.gateway.connections if hasattr(each, "send_messages")]
    return connection


class Sent:
    """In the place of a connection: keeps what is sent."""

    max_message_bytes = 1000

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def send_messages(self, messages: Sequence[bytes]) -> None:
        self.messages += map(json.loads, messages)

    def hold_messages(self, size: int) -> None:
        """Nothing is counted."""

    def pause_reading(self) -> None:
        """Nothing is read."""

    resume_reading = pause_reading


async def test_a_large_message_counts_as_memory_and_then_the_history_till_the_end(site: Site, client: Socket) -> None:
    budget = site.gateway.app.inference.body_budget
    site.engine.release.clear()
    await client.send(input="x" * 300_000, fault="hold")
    await until("it counts", lambda: budget.used_bytes > 4 * 300_000)
    site.engine.release.set()
    await client.turn()
    await until("its history alone counts", lambda: 2 * 300_000 < budget.used_bytes < 3 * 300_000)
    await client.connection.close()
    await until("nothing counts", lambda: budget.used_bytes == 0)


async def test_a_message_whose_answer_has_begun_counts_as_what_is_left_of_it(site: Site, client: Socket) -> None:
    budget = site.gateway.app.inference.body_budget
    site.engine.release.clear()
    await client.send(input="x" * 300_000, fault="pause_until_release")
    await until("it counts as decoded, and no more", lambda: 2 * 300_000 < budget.used_bytes < 3 * 300_000)
    site.engine.release.set()
    await client.connection.close()
    await until("nothing counts", lambda: budget.used_bytes == 0)


async def test_a_client_that_has_not_read_its_answer_is_given_no_other() -> None:
    sent, turns = Sent(), list[Any]()
    opened = SimpleNamespace(take_body=lambda _: None, client_full=lambda: None, client_ready=lambda: None)

    def open_turn(call: ClientCall, _: object) -> Any:
        turns.append(call)
        return opened

    session = ResponseSession(cast("Any", sent), [], open_turn, cast("Any", None))
    for _ in range(2):
        session.take_message(b'{"type": "response.create"}')
    session.client_full()
    odd = b"x-thing: a\x85b\x0bc\r\nretry-after: 1\r\n"  # as another server wrote it
    turns[0].send_whole(503, odd, b'{"error": null}')
    await asyncio.sleep(0)
    assert sent.messages == [{"type": "error", "status": 503, "error": None, "headers": {"retry-after": "1"}}]
    assert len(turns) == 1
    session.client_ready()
    assert len(turns) == 2


async def test_a_response_over_websocket_has_the_events_of_http(site: Site, client: Socket) -> None:
    await client.send(input=[{"type": "message", "role": "user", "content": "Count."}])
    events = await client.turn()
    assert events[-1]["response"]["status"] == "completed"
    assert events[-1]["response"]["output"][0]["content"][0]["text"].split() == WORDS
    reply = await site.gateway.post("/v1/responses", model="m", input="Count.", stream=True)
    assert [each["type"] for each in events_in(reply.content)] == [each["type"] for each in events]


async def test_websocket_sequential_responses(site: Site, client: Socket) -> None:
    first, second = await client.create("first"), await client.create("second")
    assert (first["status"], second["status"]) == ("completed", "completed")
    assert site.messages() == [("user", "second")]
    async with socket(site.gateway, "/responses") as another:
        assert (await another.create("as with /v1"))["status"] == "completed"
    await client.send(input="third")
    await client.send(input="fourth")
    assert [(await client.turn())[0]["sequence_number"] for _ in range(2)] == [0, 0]
    await nothing_left(site.gateway)


@pytest.mark.parametrize("stored", [True, False])
async def test_only_the_last_unstored_response_is_continued(stored: bool) -> None:
    async with response_state.site(responses_retention_h=24 if stored else 0) as site, socket(site.gateway) as client:
        first = await client.create("one", store=False)
        second = await client.create("two", store=False, previous_response_id=first["id"])
        assert (second["status"], second["previous_response_id"], second["store"]) == ("completed", first["id"], False)
        said = first["output"][0]["content"][0]["text"]
        assert site.messages() == [("user", "one"), ("assistant", said), ("user", "two")]
        again = await client.create("x", store=False, previous_response_id=first["id"])
        assert again["code"] == NOT_FOUND, "another was made since"


async def test_websocket_reconnect_store_false_recovery(site: Site) -> None:
    async with socket(site.gateway) as client:
        first = await client.create(store=False)
    async with socket(site.gateway) as client:
        assert (await client.create(store=False, previous_response_id=first["id"]))["code"] == NOT_FOUND
        assert (await client.create(store=False))["status"] == "completed"


async def test_websocket_previous_response_not_found(site: Site, client: Socket) -> None:
    await client.send(input="x", store=False, previous_response_id="resp_openresponses_missing_12345")
    [told] = await client.turn()
    assert (told["type"], told["status"]) == ("error", 400)
    assert (told["error"]["code"], told["error"]["param"]) == (NOT_FOUND, "previous_response_id")
    assert told["headers"]["x-should-retry"] == "false"


async def test_websocket_failed_continuation_evicts_cache() -> None:
    orphan = [{"type": "function_call_output", "call_id": "call_orphaned", "output": "x"}]
    faults = ({"fault": fault, "input": "x"} for fault in ("error_json", "die_mid_stream", "error_event"))
    async with response_state.site() as site, socket(site.gateway) as client:
        failures: list[Fields] = [{"input": orphan}, *faults]
        for failing in failures:
            first = await client.create(store=False)
            await client.send(store=False, previous_response_id=first["id"], **failing)
            last = (await client.turn())[-1]
            assert last["type"] == "error" or last["response"]["status"] == "failed"
            assert (await client.create(store=False, previous_response_id=first["id"]))["code"] == NOT_FOUND
        assert (await client.create(store=False))["status"] == "completed"


async def test_websocket_compact_new_chain(site: Site, client: Socket) -> None:
    asked: list[ResponseInputItemParam] = [{"role": "user", "content": "Remember: cobalt."}]
    response = await site.client.responses.with_raw_response.compact(model="m", input=asked)
    output = json.loads(response.text)["output"]
    await client.send(input=[*output, {"role": "user", "content": "What is it?"}], previous_response_id=None)
    assert (await client.turn())[-1]["response"]["status"] == "completed"
    texts = ["Remember: cobalt.", INTRODUCTION + " ".join(WORDS), "What is it?"]
    assert site.messages() == [("user", text) for text in texts]


async def test_websocket_generate_false(site: Site, client: Socket) -> None:
    await client.send(input="one", instructions="Be brief.", generate=False)
    events = await client.turn()
    assert [each["type"] for each in events] == ["response.created", "response.in_progress", "response.completed"]
    assert events[-1]["response"]["output"] == []
    assert not site.engine.requests
    warm = events[-1]["response"]["id"]
    second = await client.create("two", previous_response_id=warm)
    assert site.messages() == [("user", "one"), ("user", "two")]
    await client.send(input=[], generate=False, store=False)
    empty = (await client.turn())[-1]["response"]["id"]
    assert (await client.create("three", previous_response_id=empty))["status"] == "completed"
    assert site.messages() == [("user", "three")]
    for value in (7, 0, 1, "true"):
        assert (await client.create("x", generate=value))["param"] == "generate"
    found = await site.client.responses.retrieve(warm)
    assert (found.status, second["status"]) == ("completed", "completed")


async def test_the_sdk_talks_to_it() -> None:
    async with response_state.site() as site, site.client.responses.connect() as connection:
        await connection.response.create(model="m", input="Hi")
        kinds = []
        async for event in connection:
            kinds.append(event.type)
            if event.type == "response.completed":
                break
        assert kinds[:2] == ["response.created", "response.in_progress"]


async def test_what_is_stored_there_is_stored_whole(site: Site, client: Socket) -> None:
    first = await client.create("one", store=False)
    second = await client.create("two", previous_response_id=first["id"])
    third = await client.create("three", previous_response_id=second["id"])
    assert len(site.messages()) == 5
    fourth = await site.make("four", previous_response_id=third["id"])
    assert [text for role, text in site.messages() if role == "user"] == ["one", "two", "three", "four"]
    assert (await site.client.responses.retrieve(second["id"])).previous_response_id == first["id"]
    asked = [item async for item in site.client.responses.input_items.list(fourth.id, order="asc")]
    assert len(asked) == 7
    reference = {"type": "item_reference", "id": second["output"][0]["id"]}
    await client.send(input=[{"role": "user", "content": "five"}, reference], previous_response_id=fourth.id)
    assert (await client.turn())[-1]["response"]["status"] == "completed"
    recent = await client.create("six", store=False)
    reference = {"type": "item_reference", "id": recent["output"][0]["id"]}
    await client.send(input=[reference, {"role": "user", "content": "x"}], previous_response_id=recent["id"])
    assert (await client.turn())[-1]["response"]["status"] == "completed"
    assert [role for role, _ in site.messages()] == ["user", "assistant", "user"]


async def test_what_is_no_request_is_refused_and_the_next_is_served() -> None:
    create = '{"type": "response.create", "model": "m", "input": "x"'
    cases = (
        ("{", "invalid_json", None),
        ("7", "invalid_json", None),
        ("[" * 100_000, "invalid_json", None),
        ('{"model": "m", "input": "x"}', "invalid_request", "type"),
        ('{"type": "response.steer", "input": "x"}', "invalid_request", "type"),
        (create + ', "background": true}', "invalid_request", "background"),
        (create.replace('"m"', '"nobody"') + "}", "unknown_model", "model"),
        (create.replace('"x"', "7") + "}", "invalid_request", "input"),
        (create.replace('"model": "m", ', "") + "}", "invalid_request", "model"),
    )
    async with response_state.site() as site, socket(site.gateway) as client:
        for message, code, param in cases:
            await client.connection.send(message)
            [told] = await client.turn()
            assert (told["error"]["code"], told["error"]["param"]) == (code, param)
        assert (await client.create(stream=False))["status"] == "completed"


async def test_messages_that_cannot_be() -> None:
    async with response_state.site(max_body_mib=1) as site:
        async with socket(site.gateway) as client:
            await client.connection.send(b"\x00")
            assert await closed(client.connection) == CloseCode.UNSUPPORTED_DATA
        async with socket(site.gateway) as client:
            await client.connection.send(["x" * 500_000] * 3)
            assert await closed(client.connection) == CloseCode.MESSAGE_TOO_BIG
        async with socket(site.gateway) as client:
            await client.connection.send(['{"type": "response.create", ', '"model": "m", ', '"input": "x"}'])
            assert (await client.turn())[-1]["response"]["status"] == "completed"
        await nothing_left(site.gateway)


async def test_an_error_in_the_middle_is_told_with_its_status(site: Site, client: Socket) -> None:
    await client.send(input="x", fault="die_mid_stream")
    *_, error, last = await client.turn()
    assert (error["status"], error["error"]["code"]) == (502, "engine_disconnected")
    assert last["type"] == "response.failed"


async def refused(site: Site, **headers: str) -> tuple[int, str]:
    """Status and code of the answer to a handshake."""
    with pytest.raises(InvalidStatus) as caught:
        async with socket(site.gateway, **headers):
            pass
    body = json.loads(caught.value.response.body or b"{}")
    return caught.value.response.status_code, body["error"]["code"]


async def test_keys_hold_for_each_response_over_websocket() -> None:
    keys = (key("a", models=("m",)), key("b", scopes=("admin",)), key("gone"))
    async with response_state.site(route("other", ["http://127.0.0.1:1"]), keys=keys) as site:
        assert await refused(site) == (401, "invalid_api_key")
        assert await refused(site, authorization="Bearer wrong") == (401, "invalid_api_key")
        assert await refused(site, x_api_key="secret-b") == (403, "scope_required")
        async with socket(site.gateway, authorization="Bearer secret-a") as client:
            assert (await client.create())["status"] == "completed"
            assert (await client.create(model="other"))["code"] == "model_not_allowed"
        async with socket(site.gateway, x_api_key="secret-gone") as client:
            mine = await client.create()
            await site.gateway.publish(route("m", [site.engine.url]), keys=keys[:2])
            await client.send(input="x")
            [told] = await client.turn()
            assert (told["status"], told["error"]["code"]) == (401, "invalid_api_key")
        async with socket(site.gateway, x_api_key="secret-a") as client:
            assert (await client.create(previous_response_id=mine["id"]))["code"] == NOT_FOUND


async def test_hosts_and_origins_hold(site: Site) -> None:
    assert await refused(site, origin="https://evil.example") == (403, "forbidden_origin")
    assert await refused(site, origin="null") == (403, "forbidden_origin")
    async with socket(site.gateway, origin=site.gateway.url) as client:
        assert (await client.create())["status"] == "completed"
    async with raw(site.gateway) as client:
        wish = ("upgrade: websocket", "connection: upgrade", "sec-websocket-version: 13", KEY)
        client.write(request("GET", "/v1/responses", headers=wish).replace(b"localhost", b"evil.example"))
        response = await client.answer()
        assert (response.status, response.error["code"]) == (403, "forbidden_host")


async def test_what_is_no_handshake(site: Site) -> None:
    wrong_version = (*HANDSHAKE[:2], "sec-websocket-version: 8", KEY)
    for headers in (HANDSHAKE, (*HANDSHAKE, "sec-websocket-key: short"), wrong_version, (*HANDSHAKE, KEY, KEY)):
        async with raw(site.gateway) as client:
            client.write(request("GET", "/v1/responses", headers=headers))
            [response] = await client.to_the_end()
            assert (response.status, response.error["code"]) == (400, "invalid_request")
            assert response.error["request_id"]
    for others in (("connection: Upgrade", "upgrade: h2c", KEY), (KEY,)):
        async with raw(site.gateway) as client:
            client.write(request("GET", "/v1/responses", headers=others))
            assert (await client.answer()).status in (404, 405)


async def test_a_handshake_behind_a_request_that_is_served_is_an_ordinary_request() -> None:
    async with response_state.site() as site, raw(site.gateway) as client:
        held = json.dumps({"model": "m", "input": "x", "fault": "hold"}).encode()
        client.write(request(target="/v1/responses", body=held))
        client.write(request("GET", "/v1/responses", headers=(*HANDSHAKE, KEY)))
        await until("it runs", lambda: site.engine.running)
        site.engine.release.set()
        assert (await client.answer()).status == 200
        assert (await client.answer(2)).status in (404, 405)


async def test_a_client_that_leaves_stops_the_engine(site: Site) -> None:
    async with socket(site.gateway) as client:
        await client.send(input="x", fault="pause_until_release")
        await client.send(input="never")
        await client.event()
    await until("the engine stops", lambda: site.engine.cancelled == 1)
    await nothing_left(site.gateway)
    assert len(site.engine.requests) == 1


async def test_a_reader_that_takes_nothing_stops_the_engine_and_is_cut_off(loop_clock: LoopClock) -> None:
    async with response_state.site(client_timeout_s=30) as site:
        site.engine.words = ["x" * 20_000] * 2000
        async with raw(site.gateway, receive_bytes=4096) as client:
            message = b'{"type":"response.create","model":"m","input":"x"}'
            frame = b"\x81" + bytes([0x80 | len(message)]) + bytes(4) + message
            client.write(request("GET", "/v1/responses", headers=(*HANDSHAKE, KEY)) + frame)
            await until("it runs", lambda: site.running)
            [run] = site.running.values()
            await until("the engine waits", lambda: engine_is_paused(run))
            await loop_clock.skip(90)
            await until("the engine stops", lambda: site.engine.cancelled == 1)
        await nothing_left(site.gateway)


@pytest.mark.parametrize("filling_bytes", [100_000, 300_000], ids=["by their count", "by their bytes"])
async def test_a_client_that_sends_ahead_is_read_no_further(filling_bytes: int) -> None:
    async with response_state.site(max_body_mib=1) as site, socket(site.gateway) as client:
        await client.send(input="x", fault="hold")
        await until("it runs", lambda: site.engine.running)
        filling = "x" * filling_bytes

        async def send_ahead() -> None:
            for number in range(3 * MOST_WAITING):
                await client.send(input=str(number), store=False, instructions=filling)

        sending = asyncio.create_task(send_ahead())
        connection = socket_of(site)
        await until("no more is read", lambda: not connection._is_reading)
        assert len(connection._session._waiting) <= MOST_WAITING + 4
        assert connection._session._waiting_bytes <= 2**20 + filling_bytes + 2**18, (
            "one read of the loop's, and a frame"
        )
        site.engine.release.set()
        for _ in range(1 + 3 * MOST_WAITING):
            assert (await client.turn())[-1]["response"]["status"] == "completed"
        await sending
        assert site.messages() == [("system", filling), ("user", str(3 * MOST_WAITING - 1))]
        assert connection._is_reading


async def test_a_client_is_pinged_and_one_that_is_mute_is_cut_off(loop_clock: LoopClock) -> None:
    async with response_state.site(client_timeout_s=30) as site:
        async with socket(site.gateway) as client:
            for _ in range(3):
                await loop_clock.skip(PING_S + 1)
                assert (await client.create())["status"] == "completed"
        async with raw(site.gateway) as mute:
            mute.write(request("GET", "/v1/responses", headers=(*HANDSHAKE, KEY)))
            assert (await mute.read_bytes()).startswith(b"HTTP/1.1 101 Switching")
            await loop_clock.skip(PING_S + 15)
            assert (await mute.read_bytes()) == b"\x89\x00", "a ping"
            await loop_clock.skip(60)
            while await mute.read_bytes():
                pass


async def test_a_connection_has_an_hour(site: Site, client: Socket) -> None:
    await client.send(input="x", fault="hold")
    await until("it runs", lambda: site.engine.running)
    connection = socket_of(site)
    connection._session.check_age(LONGEST_S)
    told = await client.event()
    assert (told["status"], told["error"]["code"]) == (400, "websocket_connection_limit_reached")
    site.engine.release.set()
    assert (await client.turn())[-1]["response"]["status"] == "completed"
    assert await closed(client.connection) == CloseCode.NORMAL_CLOSURE


async def test_when_the_gateway_stops() -> None:
    async with response_state.site() as site, socket(site.gateway) as idle, socket(site.gateway) as busy:
        await busy.send(input="x", fault="pause_until_release")
        await until("it runs", lambda: site.engine.running)
        await busy.send(input="never")
        site.gateway.stop()
        assert await closed(idle.connection) == CloseCode.GOING_AWAY
        site.engine.release.set()
        assert (await busy.turn())[-1]["response"]["status"] == "completed"
        assert await closed(busy.connection) == CloseCode.GOING_AWAY
        assert len(site.engine.requests) == 1


async def test_what_outlasts_the_grace_is_ended_with_a_word() -> None:
    async with response_state.site(shutdown_grace_s=0.2) as site, socket(site.gateway) as client:
        await client.send(input="x", fault="pause_until_release")
        await client.event()
        site.gateway.stop()
        last = (await client.turn())[-1]["response"]
        assert (last["status"], last["error"]["reason"]) == ("failed", "gateway_stopping")
        assert await closed(client.connection) == CloseCode.GOING_AWAY


async def test_many_at_once_are_none_mixed_up(site: Site) -> None:
    async def talk(name: str) -> None:
        async with socket(site.gateway) as client:
            before: Fields = {}
            for number in range(3):
                previous = {"previous_response_id": before["id"]} if before else {}
                before = await client.create(f"{name}-{number}", store=False, **previous)
                assert before["status"] == "completed"

    await asyncio.gather(*(talk(f"c{number}") for number in range(3)))
    for seen in site.engine.requests:
        users = [each["content"] for each in seen.body["messages"] if each["role"] == "user"]
        assert users == [f"{users[0].partition('-')[0]}-{number}" for number in range(len(users))]
    await nothing_left(site.gateway)
