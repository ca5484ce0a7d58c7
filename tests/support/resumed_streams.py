"""Resumable streams as their clients use them: opened, cut, read again, looked up, stopped; and read on after their
gateway was killed.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import aiohttp

from assistant.streams.resumable_streams import ResumableStreams
from contract.routing import ModelRoute
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, until
from tests.fakes.mock_engine import MockEngine
from tests.support.campaign import campaign_count
from tests.support.gateway_process import running
from tests.support.http_client import Reply, read_reply

ID: Final = "conv-1"
CHAT: Final = "/v1/chat/completions"
FAMILIES: Final[Mapping[str, dict[str, Any]]] = {
    CHAT: {"messages": [{"role": "user", "content": "hello"}]},
    "/v1/completions": {"prompt": "hello"},
    "/v1/responses": {"input": "hello"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 64},
}
"""Paths of the APIs whose streams are kept, and what is asked of them."""
CUTS: Final = campaign_count(8, 100_000)
"""At so many offsets of a stream it is cut; a campaign cuts at each."""


@dataclass(frozen=True)
class Read:
    """What GET /v1/stream answered."""

    status: int
    body: bytes
    headers: Mapping[str, str]

    @property
    def state(self) -> str:
        return self.headers["x-stream-state"]

    @property
    def code(self) -> str:
        code: str = json.loads(self.body)["error"]["code"]
        return code


def open_stream(gateway: GatewayHarness, stream_id: str = ID, path: str = CHAT, **fields: Any) -> Any:
    """An opted-in stream; an async context manager, as aiohttp's."""
    body = {"model": "m", **FAMILIES[path], "stream": True, **fields}
    return gateway.client.post(gateway.url + path, json=body, headers={"X-Conversation-Id": stream_id})


async def read_stream(gateway: GatewayHarness, stream_id: str = ID, path: str = CHAT, **fields: Any) -> Reply:
    """The whole of an opted-in stream."""
    async with open_stream(gateway, stream_id, path, **fields) as response:
        return await read_reply(response)


async def read_again(gateway: GatewayHarness, start: int | str = 0, stream_id: str = ID, **query: str) -> Read:
    """GET /v1/stream/{id} from an offset on, to its end."""
    url = f"{gateway.url}/v1/stream/{quote(stream_id, safe='')}"
    async with gateway.client.get(url, params={"from": str(start), **query}) as answer:
        return Read(answer.status, await answer.read(), answer.headers)


async def stop(gateway: GatewayHarness, stream_id: str = ID) -> int:
    """Status of DELETE /v1/stream/{id}."""
    return (await gateway.request("DELETE", f"/v1/stream/{quote(stream_id, safe='')}")).status


async def look_up(gateway: GatewayHarness, *stream_ids: str) -> Any:
    """What POST /v1/streams/lookup tells."""
    return (await gateway.post("/v1/streams/lookup", conversation_ids=stream_ids)).success


def streams_of(gateway: GatewayHarness) -> ResumableStreams:
    """The gateway's own, of one in this process."""
    return gateway.assistant.streams


async def until_read(gateway: GatewayHarness, readers: int) -> None:
    """Wait until the gateway's streams have so many readers."""
    await until(lambda: streams_of(gateway).registry.count_readers() == readers, f"{readers} readers")


async def until_live(gateway: GatewayHarness, count: int = 1) -> None:
    """Wait until so many streams are live."""
    await until(lambda: streams_of(gateway).registry.live_count == count, f"{count} live streams")


async def cut_stream(answer: aiohttp.ClientResponse) -> bytes:
    sent = b""
    while not sent:
        sent += await answer.content.readany()
    answer.close()
    return sent


async def check_every_cut(gateway: GatewayHarness, model: str) -> None:
    """In each family: a client is cut off and reads on; and whoever reads from any byte gets the same bytes."""
    for path in FAMILIES:
        stream_id = f"{model}{path}"
        fields = {"model": model} | ({"store": False} if path == "/v1/responses" else {})
        sent = await cut_stream(await open_stream(gateway, stream_id, path, **fields))
        rest = await read_again(gateway, len(sent), stream_id)
        assert rest.status == 200, rest.body
        whole = sent + rest.body
        for offset in range(0, len(whole) + 1, max(1, len(whole) // CUTS)):
            read = await read_again(gateway, offset, stream_id)
            assert read.body == whole[offset:], (path, offset)
            assert (read.state, read.headers["x-stream-length"]) == ("done", str(len(whole))), (path, whole)


def text_of(stream: bytes) -> str:
    """The words of a stream of chat chunks."""
    events = [event.removeprefix("data: ") for event in stream.decode().split("\n\n") if event.startswith("data: {")]
    chunks = [json.loads(event) for event in events]
    return "".join(each["choices"][0]["delta"].get("content") or "" for each in chunks if each.get("choices")).strip()


def is_told(code: str, stream: bytes) -> bool:
    """Whether a stream of any family ends with an error of this code."""
    ends = stream.endswith((b"\n\ndata: [DONE]\n\n", b"}\n\n"))
    return ends and f'"{code}"'.encode() in b"".join(stream.split(b"\n\n")[-4:])


_LIMITS: Final = {"/v1/responses": "max_output_tokens"}
_LONG: Final = 100_000
"""Tokens of an answer that is not over when the gateway is killed."""
_PATHS: Final = tuple(FAMILIES)


@dataclass
class CutReader:
    """One reader of a stream, and what it had when its connection broke."""

    stream_id: str
    received: bytes = b""
    parts: int = 0


@dataclass
class KilledRound:
    """What became of one gateway's streams."""

    streams: int
    readers: list[CutReader] = field(default_factory=list)
    reads: dict[str, Read] = field(default_factory=dict)
    """By stream, what a reader got of the next gateway."""

    def check(self) -> None:
        """Each reader had a true prefix of what is there now, which ends explicitly."""
        assert len(self.reads) == self.streams
        for read in self.reads.values():
            assert read.status == 200, read.body
            assert (read.state, is_told("gateway_restarted", read.body)) == ("cut", True)
        for reader in self.readers:
            assert reader.received, "it had nothing yet"
            assert self.reads[reader.stream_id].body.startswith(reader.received), reader.stream_id


def model_of(engine: MockEngine) -> ModelRoute:
    """The engine as the model `m`, asked for chat completions whatever the client asks for."""
    return route("m", [engine.url], apis=(CHAT,), target_inflight=1000)


async def kill_in_the_middle(folder: Path, engine: MockEngine, streams: int, seed: int) -> KilledRound:
    """Kill a gateway in the middle of so many streams of all families, half of which have a second reader, and a
    quarter of which have lost their client. Then ask another gateway for them."""
    drawn, seen = random.Random(seed), KilledRound(streams)
    async with running(ROUNDHOUSE_STATE=str(folder)) as (process, gateway):
        await gateway.publish(model_of(engine))
        tasks = [asyncio.create_task(_read_stream(gateway, number, drawn, seen)) for number in range(streams)]
        least = drawn.randint(1, 40)
        await until(
            lambda: len(seen.readers) >= streams and all(each.parts >= least for each in seen.readers), "all are read"
        )
        process.kill()
        await process.wait()
        await asyncio.gather(*tasks)
    async with running(ROUNDHOUSE_STATE=str(folder)) as (_, gateway):
        await gateway.publish(model_of(engine))
        for number in range(streams):
            seen.reads[_name(number)] = await read_again(gateway, stream_id=_name(number))
    return seen


def _name(number: int) -> str:
    return f"conv-{number}"


async def _read_stream(gateway: GatewayHarness, number: int, drawn: random.Random, seen: KilledRound) -> None:
    path = _PATHS[number % len(_PATHS)]
    fields = {_LIMITS.get(path, "max_tokens"): _LONG} | ({"store": False} if path == "/v1/responses" else {})
    answer = await open_stream(gateway, _name(number), path, **fields)
    assert answer.status == 200, await answer.read()
    async with asyncio.TaskGroup() as group:
        if drawn.random() < 0.25:
            await answer.content.readany()
            answer.close()
            group.create_task(_follow(gateway, number, seen))
            return
        group.create_task(_receive(answer, CutReader(_name(number)), seen))
        if drawn.random() < 0.5:
            group.create_task(_follow(gateway, number, seen))


async def _follow(gateway: GatewayHarness, number: int, seen: KilledRound) -> None:
    answer = await gateway.client.get(f"{gateway.url}/v1/stream/{_name(number)}")
    await _receive(answer, CutReader(_name(number)), seen)


async def _receive(answer: aiohttp.ClientResponse, reader: CutReader, seen: KilledRound) -> None:
    seen.readers.append(reader)
    try:
        while part := await answer.content.readany():
            reader.received += part
            reader.parts += 1
    except aiohttp.ClientError:
        pass  # the gateway is gone
