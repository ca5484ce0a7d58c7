"""Resumable streams as their clients use them: opened, cut, read again, looked up, stopped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import aiohttp

from gateway.streams.resumable_streams import ResumableStreams
from tests.fakes.gateway_harness import GatewayHarness, until
from tests.support.campaign import campaign_count
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
    assert gateway.server is not None
    return gateway.server._gateway.streams


async def until_read(gateway: GatewayHarness, readers: int) -> None:
    """Wait until the gateway's streams have so many readers."""
    await until(lambda: streams_of(gateway).registry.count_readers() == readers, f"{readers} readers")


async def until_live(gateway: GatewayHarness, count: int = 1) -> None:
    """Wait until so many streams are live."""
    await until(lambda: streams_of(gateway).registry.live_count == count, f"{count} live streams")


async def cut_stream(answer: aiohttp.ClientResponse, at_least: int = 1) -> bytes:
    sent = b""
    while len(sent) < at_least:
        sent += await answer.content.readany()
    answer.close()
    return sent


async def check_every_cut(gateway: GatewayHarness, model: str, paths: Iterable[str] = FAMILIES) -> None:
    """In each family: a client is cut off and reads on; and whoever reads from any byte gets the same bytes."""
    for path in paths:
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
