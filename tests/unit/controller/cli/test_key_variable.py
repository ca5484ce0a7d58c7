"""`ROUNDHOUSE_KEY`: the command line through a gateway that wants a key."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from controller.cli.app import run
from controller.cli.exit_codes import ExitCode
from controller.schema.errors import RoundhouseError


@pytest.mark.parametrize("key", ["rh-secret", None])
async def test_the_key_goes_to_a_gateway_and_is_never_shown(
    key: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str | None] = []

    async def refuse(request: web.Request) -> web.Response:
        seen.append(request.headers.get("authorization"))
        error = RoundhouseError("scope_required", "The key ci lacks the scope `admin`.")
        return web.Response(status=403, body=error.json_bytes(), content_type="application/json")

    monkeypatch.delenv("ROUNDHOUSE_KEY", raising=False)
    if key is not None:
        monkeypatch.setenv("ROUNDHOUSE_KEY", key)
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", refuse)
    async with TestServer(app) as gateway:
        code = await asyncio.to_thread(run, ["drift", "--controller", str(gateway.make_url("")).rstrip("/")])
    said = capsys.readouterr()
    assert code not in (ExitCode.DONE, ExitCode.USAGE)
    assert seen == [f"Bearer {key}" if key is not None else None]
    assert "lacks the scope" in said.err
    assert "rh-secret" not in said.out + said.err
