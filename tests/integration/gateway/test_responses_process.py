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
    async with running(ROUNDHOUSE_STATE=str(folder), **settings) as (process, here):
        await here.publish(route("m", [engine.url], target_inflight=1))
        async with openai.AsyncOpenAI(base_url=here.url + "/v1", api_key="none", max_retries=0) as client:
            yield process, Site(here, engine, client)


async def test_what_is_stored_survives_a_killed_gateway(tmp_path: Path) -> None:
    folder = tmp_path / "not there yet"
    async with engines(1) as (engine,):
        async with process_site(folder, engine) as (process, here):
            first = await here.make("one")
            second = await here.make("two", previous_response_id=first.id)
            made = [await here.make(background=True, fault="hold") for _ in range(2)]
            await until(lambda: engine.running == 1, "one of them runs")
            process.kill()
            await process.wait()
        async with process_site(folder, engine) as (_, here):
            assert await here.client.responses.retrieve(second.id) == second
            await here.make("three", previous_response_id=second.id)
            assert [text for _, text in here.messages()] == ["one", TEXT, "two", TEXT, "three"]
            for each in made:
                found = await here.client.responses.retrieve(each.id)
                assert (found.status, found.created_at) == ("failed", each.created_at)
                assert found.error is not None
                assert found.error.message == "The gateway was restarted before the response was complete."
                assert (await here.client.responses.cancel(each.id)).status == "failed"
                assert [item async for item in here.client.responses.input_items.list(each.id)]
            await here.client.responses.delete(first.id)
        async with process_site(folder, engine) as (_, here):
            assert (await refusal(here.client.responses.retrieve(first.id)))[0] == 404
    assert (folder / "responses.db").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("number", range(campaign_count(2, 20)))
async def test_what_was_told_to_its_end_survives_a_kill_at_once(number: int, tmp_path: Path) -> None:
    kinds = [(path, stream) for path in ("/v1/chat/completions", "/v1/responses") for stream in (True, False)]
    kinds = kinds[number % 4 :] + kinds[: number % 4]
    bodies = []
    async with engines(1) as (engine,):
        async with process_site(tmp_path, engine) as (process, here):
            for path, stream in kinds:
                said = {"messages": [{"role": "user", "content": "x"}]} if "chat" in path else {"input": "x"}
                async with here.gateway.post(path, model="m", store=True, stream=stream, **said) as answer:
                    bodies.append(await answer.text())
            process.kill()
            await process.wait()
        async with process_site(tmp_path, engine) as (_, here):
            for (path, _stream), body in zip(kinds, bodies, strict=True):
                [told_id, *_] = re.findall(r'"id":\s?"((?:chatcmpl-|resp_)[^"]+)"', body)
                assert (await here.gateway.get(f"{path}/{told_id}")).status == 200, (path, body)


async def test_a_stop_lets_what_is_in_the_background_finish(tmp_path: Path) -> None:
    async with engines(1) as (engine,):
        async with process_site(tmp_path, engine) as (process, here):
            made = await here.make(background=True, fault="hold")
            await until(lambda: engine.running == 1, "it runs")
            process.terminate()
            asyncio.get_running_loop().call_later(1, engine.release.set)
            code, said = await ended(process)
            assert code == 0, said
            assert "Traceback" not in said
        async with process_site(tmp_path, engine) as (process, here):
            assert (await here.client.responses.retrieve(made.id)).output_text == TEXT
            engine.release.clear()
            late = await here.make(background=True, fault="hold")
            await until(lambda: engine.running == 1, "it runs")
            process.send_signal(signal.SIGINT)
            await refused(here.gateway)
            process.send_signal(signal.SIGINT)  # does not wait
            code, said = await ended(process)
            assert code == 0, said
        async with process_site(tmp_path, engine) as (_, here):
            assert (await here.client.responses.retrieve(late.id)).status == "failed"


async def test_without_room_on_the_disk_answers_go_on_and_the_log_says_what_is_lost(tmp_path: Path) -> None:
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    async with engines(1) as (engine,), process_site(tmp_path, engine) as (process, here):
        first = await here.make("one")
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
        lost = await here.make("x" * 500_000)
        assert (lost.output_text, lost.to_dict()["store"]) == (TEXT, False)
        assert (await refusal(here.client.responses.retrieve(lost.id)))[1] == "response_not_found"
        assert (await refusal(here.make(previous_response_id=lost.id)))[1] == "previous_response_not_found"
        assert (await refusal(here.make("x" * 500_000, background=True)))[1] == "response_store_failed"
        assert await here.client.responses.retrieve(first.id) == first
        await here.make("two", previous_response_id=first.id)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, unlimited)
        kept = await here.make("x" * 500_000)
        assert await here.client.responses.retrieve(kept.id) == kept
        process.terminate()
        code, said = await ended(process)
        assert code == 0, said
        assert f"the response {lost.id} is not stored" in said
        assert f"the response {kept.id} is not stored" not in said
        assert "Traceback" not in said


async def test_a_damaged_database_is_put_aside_and_the_log_says_so(tmp_path: Path) -> None:
    (tmp_path / "responses.db").write_bytes(b"not a database" * 1000)
    async with engines(1) as (engine,), process_site(tmp_path, engine) as (process, here):
        made = await here.make("one")
        assert await here.client.responses.retrieve(made.id) == made
        process.terminate()
        _, said = await ended(process)
        assert "it is now responses.db.damaged" in said
    assert (tmp_path / "responses.db.damaged").read_bytes() == b"not a database" * 1000


async def test_a_folder_that_cannot_be_used_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        code, said = await ended(await start(ROUNDHOUSE_STATE=str(folder), ROUNDHOUSE_PORT=str(free_port())))
        assert code == 2
        assert said.count("\n") == 1, said
        assert str(folder) in said
        assert "ROUNDHOUSE_STATE" in said
    # What stores nothing needs no folder.
    settings = {
        "ROUNDHOUSE_STATE": str(tmp_path / "file"),
        "ROUNDHOUSE_RESPONSES_RETENTION_H": "0",
        "ROUNDHOUSE_STREAM_FILES": "0",
    }
    async with running(**settings) as (_, here), here.client.get(here.url + "/health") as answer:
        assert answer.status == 200


async def test_two_gateways_do_not_share_a_folder(tmp_path: Path) -> None:
    async with engines(1) as (engine,), process_site(tmp_path, engine) as (_, here):
        made = await here.make("one")
        code, said = await ended(await start(ROUNDHOUSE_STATE=str(tmp_path), ROUNDHOUSE_PORT=str(free_port())))
        assert code == 2
        assert "another gateway uses it" in said
        assert said.count("\n") == 1, said
        await here.make("two", previous_response_id=made.id)
