"""Gateways that are killed in the middle of resumable streams, and what their readers had and get."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp

from controller.schema.routing import ModelRoute
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, until
from tests.fakes.mock_engine import MockEngine
from tests.support.gateway_process import running
from tests.support.resumed_streams import CHAT, FAMILIES, Read, is_told, open_stream, read_again

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
