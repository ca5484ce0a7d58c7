"""Stored responses and the process that stores them: killed, stopped, started anew, without room, without a folder."""

from __future__ import annotations

import asyncio
import contextlib
import re
import resource
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest

from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import engines, until
from tests.fakes.mock_engine import WORDS, MockEngine
from tests.support.campaign import campaign_count
from tests.support.gateway_process import ended, refused, running, start
from tests.support.ports import free_port
from tests.support.response_state import Site, refusal

TEXT = " ".join(WORDS)


@contextlib.asynccontextmanager
async def process_site(
    folder: Path, engine: MockEngine, **settings: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, Site]]:
    """A gateway process that keeps its state in the folder, with the model `m`."""
    async with running(ROUNDHOUSE_STATE=str(folder), **settings) as (process, gateway):
        await gateway.publish(route("m", [engine.url], target_inflight=1))
        async with openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=0) as client:
            yield process, Site(gateway, engine, client)


async def test_what_is_stored_survives_a_killed_gateway(tmp_path: Path) -> None:
    folder = tmp_path / "not there yet"
    async with engines(1) as (engine,):
        async with process_site(folder, engine) as (process, site):
            first = await site.make("one")
            second = await site.make("two", previous_response_id=first.id)
            made = [await site.make(background=True, fault="hold") for _ in range(2)]
            await until(lambda: engine.running == 1, "one of them runs")
            process.kill()
            await process.wait()
        async with process_site(folder, engine) as (_, site):
            assert await site.client.responses.retrieve(second.id) == second
            await site.make("three", previous_response_id=second.id)
            assert [text for _, text in site.messages()] == ["one", TEXT, "two", TEXT, "three"]
            for each in made:
                found = await site.client.responses.retrieve(each.id)
                assert (found.status, found.created_at) == ("failed", each.created_at)
                assert found.error is not None
                assert found.error.message == "The gateway was restarted before the response was complete."
                assert (await site.client.responses.cancel(each.id)).status == "failed"
                assert [item async for item in site.client.responses.input_items.list(each.id)]
            await site.client.responses.delete(first.id)
        async with process_site(folder, engine) as (_, site):
            assert (await refusal(site.client.responses.retrieve(first.id)))[0] == 404
    assert (folder / "responses.db").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("number", range(campaign_count(2, 20)))
async def test_what_was_told_to_its_end_survives_a_kill_at_once(number: int, tmp_path: Path) -> None:
    kinds = [(path, stream) for path in ("/v1/chat/completions", "/v1/responses") for stream in (True, False)]
    kinds = kinds[number % 4 :] + kinds[: number % 4]
    bodies = []
    async with engines(1) as (engine,):
        async with process_site(tmp_path, engine) as (process, site):
            for path, stream in kinds:
                fields = {"messages": [{"role": "user", "content": "x"}]} if "chat" in path else {"input": "x"}
                bodies.append((await site.gateway.post(path, model="m", store=True, stream=stream, **fields)).text)
            process.kill()
            await process.wait()
        async with process_site(tmp_path, engine) as (_, site):
            for (path, _stream), body in zip(kinds, bodies, strict=True):
                [told_id, *_] = re.findall(r'"id":\s?"((?:chatcmpl-|resp_)[^"]+)"', body)
                assert (await site.gateway.get(f"{path}/{told_id}")).status == 200, (path, body)


async def test_a_stop_lets_what_is_in_the_background_finish(tmp_path: Path) -> None:
    async with engines(1) as (engine,):
        async with process_site(tmp_path, engine) as (process, site):
            made = await site.make(background=True, fault="hold")
            await until(lambda: engine.running == 1, "it runs")
            process.terminate()
            asyncio.get_running_loop().call_later(1, engine.release.set)
            code, output = await ended(process)
            assert code == 0, output
            assert "Traceback" not in output
        async with process_site(tmp_path, engine) as (process, site):
            assert (await site.client.responses.retrieve(made.id)).output_text == TEXT
            engine.release.clear()
            late = await site.make(background=True, fault="hold")
            await until(lambda: engine.running == 1, "it runs")
            process.send_signal(signal.SIGINT)
            await refused(site.gateway)
            process.send_signal(signal.SIGINT)  # does not wait
            code, output = await ended(process)
            assert code == 0, output
        async with process_site(tmp_path, engine) as (_, site):
            assert (await site.client.responses.retrieve(late.id)).status == "failed"


async def test_without_room_on_the_disk_answers_go_on_and_the_log_says_what_is_lost(tmp_path: Path) -> None:
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    async with engines(1) as (engine,), process_site(tmp_path, engine) as (process, site):
        first = await site.make("one")
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
        lost = await site.make("x" * 500_000)
        assert (lost.output_text, lost.to_dict()["store"]) == (TEXT, False)
        assert (await refusal(site.client.responses.retrieve(lost.id)))[1] == "response_not_found"
        assert (await refusal(site.make(previous_response_id=lost.id)))[1] == "previous_response_not_found"
        assert (await refusal(site.make("x" * 500_000, background=True)))[1] == "response_store_failed"
        assert await site.client.responses.retrieve(first.id) == first
        await site.make("two", previous_response_id=first.id)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, unlimited)
        kept = await site.make("x" * 500_000)
        assert await site.client.responses.retrieve(kept.id) == kept
        process.terminate()
        code, output = await ended(process)
        assert code == 0, output
        assert f"the response {lost.id} is not stored" in output
        assert f"the response {kept.id} is not stored" not in output
        assert "Traceback" not in output


async def test_a_damaged_database_is_put_aside_and_the_log_says_so(tmp_path: Path) -> None:
    (tmp_path / "responses.db").write_bytes(b"not a database" * 1000)
    async with engines(1) as (engine,), process_site(tmp_path, engine) as (process, site):
        made = await site.make("one")
        assert await site.client.responses.retrieve(made.id) == made
        process.terminate()
        _, output = await ended(process)
        assert "it is now responses.db.damaged" in output
    assert (tmp_path / "responses.db.damaged").read_bytes() == b"not a database" * 1000


async def test_a_folder_that_cannot_be_used_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        code, output = await ended(await start(ROUNDHOUSE_STATE=str(folder), ROUNDHOUSE_PORT=str(free_port())))
        assert (code, output.count("\n")) == (2, 1), output
        assert str(folder) in output
        assert "ROUNDHOUSE_STATE" in output
    # What stores nothing needs no folder.
    nothing = {"ROUNDHOUSE_RESPONSES_RETENTION_H": "0", "ROUNDHOUSE_STREAM_FILES": "0"}
    async with running(ROUNDHOUSE_STATE=str(tmp_path / "file"), **nothing) as (_, gateway):
        assert (await gateway.get("/health")).status == 200


async def test_two_gateways_do_not_share_a_folder(tmp_path: Path) -> None:
    async with engines(1) as (engine,), process_site(tmp_path, engine) as (_, site):
        made = await site.make("one")
        code, output = await ended(await start(ROUNDHOUSE_STATE=str(tmp_path), ROUNDHOUSE_PORT=str(free_port())))
        assert (code, output.count("\n")) == (2, 1), output
        assert "another gateway uses it" in output
        await site.make("two", previous_response_id=made.id)
