"""Remotes: keys as they are found in the wild, and a fault of one that stays its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from controller.engines.openai_remote import OpenAIRemoteDefinition
from controller.observe.remote_health import RemoteHealth
from controller.state import DesiredModel, Statement
from tests.support.loop_clock import LoopClock, loop_clock
from tests.support.wait import until

__all__ = ["loop_clock"]


@pytest.fixture
async def server() -> AsyncIterator[str]:
    """A server that wants the key `sk-123`."""

    async def models(request: web.Request) -> web.Response:
        return web.Response(status=200 if request.headers.get("Authorization") == "Bearer sk-123" else 401)

    app = web.Application()
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    [address] = runner.addresses
    yield f"http://127.0.0.1:{address[1]}/v1"
    await runner.cleanup()


@pytest.fixture
async def remotes() -> AsyncIterator[RemoteHealth]:
    async with aiohttp.ClientSession() as session:
        made = RemoteHealth(session, interval_s=0.05, timeout_s=5.0, wake=lambda: None)
        yield made
        await made.close()


def _model(name: str, url: str, **fields: str) -> DesiredModel:
    definition = OpenAIRemoteDefinition(backend="openai_remote", base_url=url, **fields)  # type: ignore[arg-type]
    return DesiredModel(name, definition, "openai_remote", "h", 1, Statement("file", 0.0, ""), runs=False)


async def test_keys_with_a_line_end_are_keys_and_bad_ones_are_said(
    remotes: RemoteHealth, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text("sk-123\n")
    monkeypatch.setenv("KEY", "sk-123\n")
    monkeypatch.setenv("BROKEN", "sk-1\n23")
    monkeypatch.setenv("WRONG", "sk-9")
    remotes.track_models(
        [
            _model("file", server, api_key_file=str(tmp_path / "key")),
            _model("env", server, api_key_env="KEY"),
            _model("broken", server, api_key_env="BROKEN"),
            _model("wrong", server, api_key_env="WRONG"),
            _model("unset", server, api_key_env="NO_SUCH_VARIABLE"),
        ]
    )
    assert remotes.list_errors() == {}, "nobody was asked yet"
    await remotes.wait_for_first_round()
    errors = remotes.list_errors()
    assert (errors["file"], errors["env"]) == (None, None)
    assert "internal error" in (errors["broken"] or "")
    assert "its key was refused" in (errors["wrong"] or "")
    assert "NO_SUCH_VARIABLE" in (errors["unset"] or "")
    assert "sk-" not in str(errors)
    assert remotes.read_token("file") == remotes.read_token("env") == "sk-123"


async def test_a_remote_that_hangs_holds_up_nobody(server: str, loop_clock: LoopClock) -> None:
    hang = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = hang.sockets[0].getsockname()[1]
    async with aiohttp.ClientSession() as session:
        remotes = RemoteHealth(session, interval_s=0.05, timeout_s=30, wake=lambda: None)
        remotes.track_models([_model("hangs", f"http://127.0.0.1:{port}/v1"), _model("open", server)])
        await until("the other one was asked", lambda: "open" in remotes.list_errors())
        assert "its key was refused" in (remotes.list_errors()["open"] or "")
        assert "hangs" not in remotes.list_errors()
        first = asyncio.create_task(remotes.wait_for_first_round())
        await loop_clock.skip(35)
        await first
        await until("both were asked", lambda: len(remotes.list_errors()) == 2)
        assert "does not answer in time" in (remotes.list_errors()["hangs"] or "")
        await remotes.close()
    hang.close()
