"""Resumable streams and the process that keeps them: killed, stopped, started anew, without room, beside another."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness, until
from tests.fakes.mock_engine import WORDS, MockEngine
from tests.support.campaign import campaign_count, campaign_seeds
from tests.support.gateway_process import ended, refused, running
from tests.support.queueing import key
from tests.support.resumed_streams import (
    CHAT,
    is_told,
    kill_in_the_middle,
    look_up,
    model_of,
    open_stream,
    read_again,
    read_stream,
    stop,
    text_of,
)
from tests.support.small_disk import mount_small_disk

TEXT = " ".join(WORDS)


@contextlib.asynccontextmanager
async def restarted(
    folder: Path, engine: MockEngine, **settings: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, GatewayHarness]]:
    """A gateway process that keeps its state in the folder, with the model `m`."""
    async with running(ROUNDHOUSE_STATE=str(folder), **settings) as (process, gateway):
        await gateway.publish(model_of(engine))
        yield process, gateway


async def test_a_killed_gateway_loses_nothing_that_was_sent(tmp_path: Path) -> None:
    for number, seed in enumerate(campaign_seeds(1, 30)):
        async with engines(1) as (engine,):
            seen = await kill_in_the_middle(tmp_path / str(number), engine, campaign_count(12, 50), seed)
        seen.check()


async def test_what_had_ended_is_replayed_whole(tmp_path: Path) -> None:
    async with engines(1) as (engine,):
        async with restarted(tmp_path, engine) as (process, gateway):
            sent = {}
            for path in (CHAT, "/v1/responses", "/v1/messages"):
                sent[path] = (await read_stream(gateway, path, path)).content
            async with open_stream(gateway, "stopped", fault="pause_until_release") as response:
                await response.content.readany()
                await stop(gateway, "stopped")
            await read_stream(gateway, "removed")
            await stop(gateway, "removed")
            folder = tmp_path / "streams"
            assert folder.stat().st_mode & 0o777 == 0o700
            assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
            process.kill()
            await process.wait()
        for _ in range(2):
            async with restarted(tmp_path, engine) as (_, gateway):
                for path, body in sent.items():
                    read = await read_again(gateway, 10, path)
                    assert (read.state, read.body, read.headers["x-stream-file"]) == ("done", body[10:], "kept")
                read = await read_again(gateway, stream_id="stopped")
                assert (read.state, is_told("stream_stopped", read.body)) == ("stopped", True)
                assert (await read_again(gateway, stream_id="removed")).status == 404
                assert 'roundhouse_gateway_streams{state="ended"} 4.0' in await gateway.metrics()


async def test_a_stop_tells_every_reader(tmp_path: Path) -> None:
    async with engines(1) as (engine,):
        async with restarted(tmp_path, engine, ROUNDHOUSE_SHUTDOWN_GRACE_S="0.2") as (process, gateway):
            first = await open_stream(gateway, fault="pause_until_release")
            second = await gateway.client.get(f"{gateway.url}/v1/stream/conv-1")
            begun = await first.content.readuntil(b"\n\n"), await second.content.readuntil(b"\n\n")
            dropped = await open_stream(gateway, "dropped", fault="pause_until_release")
            await dropped.content.readany()
            dropped.close()
            process.send_signal(signal.SIGTERM)
            told = [start + await response.read() for start, response in zip(begun, (first, second), strict=True)]
            code, output = await ended(process)
            assert code == 0, output
            assert told[0] == told[1]
            assert is_told("gateway_stopping", told[0])
        async with restarted(tmp_path, engine) as (_, gateway):
            read = await read_again(gateway)
            assert (read.state, read.body) == ("cut", told[0])
            assert is_told("gateway_stopping", (await read_again(gateway, stream_id="dropped")).body)


async def test_a_stop_lets_a_stream_without_a_client_finish(tmp_path: Path) -> None:
    async with engines(1) as (engine,):
        async with restarted(tmp_path, engine) as (process, gateway):
            response = await open_stream(gateway, fault="pause_until_release")
            await response.content.readany()
            response.close()
            process.send_signal(signal.SIGTERM)
            await refused(gateway)
            engine.release.set()
            assert (await ended(process))[0] == 0
        async with restarted(tmp_path, engine) as (_, gateway):
            read = await read_again(gateway)
            assert (read.state, text_of(read.body)) == ("done", TEXT)


async def test_a_full_disk_ends_the_promise_and_not_the_stream(tmp_path: Path) -> None:
    with mount_small_disk(tmp_path / "disk") as disk:
        async with engines(1) as (engine,):
            settings = {"ROUNDHOUSE_RESPONSES_RETENTION_H": "0", "ROUNDHOUSE_LOG_MIB": "0"}
            async with restarted(disk.folder, engine, **settings) as (process, gateway):
                response = await open_stream(gateway, fault="pause_until_release", max_tokens=40_000)
                assert response.headers["x-stream-file"] == "kept"
                begun = await response.content.readany()
                disk.fill()
                engine.release.set()
                sent = begun + await response.read()
                assert b": this stream is kept in no file any more" in sent
                assert len(text_of(sent).split()) == 40_000
                [found] = await look_up(gateway, "conv-1")
                assert (found["state"], found["in_file"]) == ("done", False)
                read = await read_again(gateway, found["first_offset"])
                assert (read.headers["x-stream-file"], read.body) == ("none", sent[found["first_offset"] :])
                disk.fill()  # what was kept of the first is gone
                reply = await read_stream(gateway, "second")
                assert (reply.headers["x-stream-file"], text_of(reply.content)) == ("none", TEXT)
                assert "roundhouse_gateway_stream_files_lost_total 2.0" in await gateway.metrics()
                disk.free()
                async with open_stream(gateway, "third") as response:
                    assert response.headers["x-stream-file"] == "kept"
                    await response.read()
                assert len(list((disk.folder / "streams").iterdir())) == 2, "a lock and the third"
                process.terminate()
                assert "No space left on device" in (await ended(process))[1]


async def test_an_id_belongs_to_its_tenant_after_a_restart(tmp_path: Path) -> None:
    keys = tuple(key(name) for name in ("alice", "bob"))
    async with engines(1) as (engine,):
        async with gateway_harness(state=tmp_path) as gateway:
            await gateway.publish(model_of(engine), keys=keys)
            gateway.client.headers["authorization"] = "Bearer secret-alice"
            sent = (await read_stream(gateway)).content
        async with gateway_harness(state=tmp_path) as gateway:
            await gateway.publish(model_of(engine), keys=keys)
            gateway.client.headers["authorization"] = "Bearer secret-bob"
            assert (await read_again(gateway)).status == 404
            assert await look_up(gateway, "conv-1") == []
            assert await stop(gateway) == 404
            gateway.client.headers["authorization"] = "Bearer secret-alice"
            assert (await read_again(gateway)).body == sent


async def test_another_gateway_leaves_the_files_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder: dict[str, Any] = {"state": tmp_path, "responses_retention_h": 0}
    async with engines(1) as (engine,), gateway_harness(**folder) as gateway:
        await gateway.publish(model_of(engine))
        first = await open_stream(gateway, fault="pause_until_release")
        await first.content.readany()
        async with gateway_harness(**folder) as other:
            await other.publish(model_of(engine))
            reply = await read_stream(other, "other")
            assert (reply.headers["x-stream-file"], text_of(reply.content)) == ("none", TEXT)
            assert (await read_again(other)).status == 404
            assert "another gateway uses it" in caplog.text
        engine.release.set()
        await first.read()
        assert (await read_again(gateway)).headers["x-stream-file"] == "kept"


async def test_without_files_nothing_is_written(tmp_path: Path) -> None:
    async with engines(1) as (engine,), gateway_harness(state=tmp_path, stream_files=False) as gateway:
        await gateway.publish(model_of(engine))
        async with open_stream(gateway) as response:
            assert response.headers["x-stream-file"] == "none"
            sent = await response.read()
        assert (await read_again(gateway)).body == sent
        assert not (tmp_path / "streams").exists()


async def test_what_is_expired_goes_with_its_file(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"stream_ttl_s": 0.05, "stream_gc_s": 0.05}
    async with engines(1) as (engine,), gateway_harness(state=tmp_path, **settings) as gateway:
        await gateway.publish(model_of(engine))
        await read_stream(gateway)
        await until(lambda: [path.name for path in (tmp_path / "streams").iterdir()] == ["lock"], "its file goes")
        assert (await read_again(gateway)).status == 404
        assert await stop(gateway) == 204


async def test_a_response_in_the_background_is_read_on_after_a_kill(tmp_path: Path) -> None:
    body = {"input": "Hi", "background": True, "stream": True, "max_output_tokens": 100_000}
    async with engines(1) as (engine,):
        async with restarted(tmp_path, engine) as (process, gateway):
            response = await gateway.post("/v1/responses", model="m", **body).__aenter__()
            sent = await response.content.readuntil(b"\n\n")
            response_id = json.loads(sent.partition(b"data: ")[2])["response"]["id"]
            while sent.count(b"\n\n") < 30:
                sent += await response.content.readany()
            process.kill()
            await process.wait()
        sent = sent[: sent.rindex(b"\n\n") + 2]
        async with restarted(tmp_path, engine) as (_, gateway):
            whole = (await read_again(gateway, stream_id=response_id)).body
            assert whole.startswith(sent)
            assert is_told("gateway_restarted", whole)
            url = f"{gateway.url}/v1/responses/{response_id}?stream=true&starting_after="
            events = [event + b"\n\n" for event in whole.split(b"\n\n")[:-1]]
            for number in (0, 20):
                async with gateway.client.get(f"{url}{number}") as response:
                    assert await response.read() == b"".join(events[number + 1 :])
            assert (await gateway.get(f"/v1/responses/{response_id}")).body["status"] == "failed"
            assert (await gateway.request("DELETE", f"/v1/responses/{response_id}")).status == 200
            assert (await read_again(gateway, stream_id=response_id)).status == 404
