"""HTTPS by certificate files: what works without works with it, and files that cannot be are told at once."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.fakes.mock_engine import WORDS, MockEngine
from tests.support.gateway_process import ended, start
from tests.support.raw_http import chat_body, raw, spotless
from tests.support.wait import until


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two self-signed certificates of this machine and their keys, one of these encrypted too."""
    folder = tmp_path_factory.mktemp("tls")
    for name in ("a", "b"):
        command = (
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
        )
        command += f" -addext subjectAltName=DNS:localhost,IP:127.0.0.1 -keyout {name}.key -out {name}.pem"
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    encrypt = "openssl ec -in a.key -aes256 -passout pass:x -out encrypted.key"
    subprocess.run(encrypt.split(), cwd=folder, check=True, capture_output=True)
    (folder / "both.pem").write_bytes((folder / "a.pem").read_bytes() + (folder / "a.key").read_bytes())
    (folder / "junk").write_text("junk")
    return folder


@contextlib.asynccontextmanager
async def secured(
    files: Path, **settings: Any
) -> AsyncIterator[tuple[GatewayHarness, MockEngine, aiohttp.ClientSession]]:
    """A gateway with the certificate `a`, the model `m`, and a client that trusts it."""
    paths: dict[str, Any] = {"tls_cert": files / "a.pem", "tls_key": files / "a.key"} | settings
    trusting = ssl.create_default_context(cafile=str(files / "a.pem"))
    async with (
        gateway_harness(**paths) as here,
        engines(1) as (engine,),
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting)) as client,
    ):
        await here.publish(route("m", [engine.url]))
        yield here, engine, client


async def test_blocking_streams_and_the_framework(files: Path) -> None:
    async with secured(files) as (here, engine, client):
        assert here.url.startswith("https://")
        for _ in range(2):
            async with client.post(here.url + "/v1/chat/completions", data=chat_body()) as answer:
                assert (await answer.json())["choices"][0]["message"]["content"] == " ".join(WORDS)
            async with client.post(here.url + "/v1/chat/completions", data=chat_body(stream=True)) as answer:
                assert (await answer.read()).endswith(b"data: [DONE]\n\n")
            async with client.get(here.url + "/v1/models") as answer:
                assert answer.status == 200
            async with client.post(here.url + "/v1/admin/plan", data=b"{}") as answer:
                assert answer.status == 200
        image = "x" * 3_000_000
        body = chat_body(image=image, fault="huge", bytes=5_000_000)
        async with client.post(here.url + "/v1/chat/completions", data=body) as answer:
            assert len(await answer.read()) == 5_000_000
        assert engine.requests[-1].body["image"] == image
        assert here.server is not None
        assert len(here.server.server_state.connections) == 1, "it was kept"
        await client.close()
        await spotless(here)


async def test_one_file_may_hold_both(files: Path) -> None:
    async with (
        secured(files, tls_cert=files / "both.pem", tls_key=None) as (here, _, client),
        client.get(here.url + "/health") as answer,
    ):
        assert answer.status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_cancels_the_engines_work(files: Path, stream: bool) -> None:
    async with secured(files) as (here, engine, client):
        body = chat_body(stream=stream, fault="pause_until_release" if stream else "hold")
        call = asyncio.create_task(client.post(here.url + "/v1/chat/completions", data=body).__aenter__())
        await until("it is inside", lambda: engine.running == 1)
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
        await client.close()
        await until("the engine's work is cancelled", lambda: engine.cancelled == 1)
        await spotless(here)


async def test_a_body_over_the_cap_is_answered_and_the_connection_ends(files: Path) -> None:
    async with secured(files, max_body_mib=1) as (here, _, client):
        headers = {"connection": "keep-alive"}
        async with client.post(here.url + "/v1/chat/completions", data=b" " * 3_000_000, headers=headers) as answer:
            assert answer.status == 413
            assert answer.headers["connection"] == "close"
        await client.close()
        await spotless(here)


async def test_who_does_not_speak_tls_is_not_answered(files: Path) -> None:
    async with secured(files) as (here, _, _):
        async with raw(here) as plain:
            plain.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            while await plain.read_bytes():
                pass
            assert not plain.received.startswith(b"HTTP/")
        await spotless(here)


@pytest.mark.parametrize(
    ("cert", "key", "words"),
    [
        ("a.pem", "b.key", "another certificate's"),
        ("a.pem", "encrypted.key", "unencrypted"),
        ("a.pem", "junk", "PEM"),
        ("junk", "a.key", "PEM"),
        ("a.pem", None, "PEM"),
    ],
)
async def test_files_that_do_not_fit_are_told_in_one_line(files: Path, cert: str, key: str | None, words: str) -> None:
    settings = {"ROUNDHOUSE_TLS_CERT": str(files / cert)} | ({"ROUNDHOUSE_TLS_KEY": str(files / key)} if key else {})
    code, said = await ended(await start(ROUNDHOUSE_PORT="0", **settings))
    assert (code, said.count("\n")) == (2, 1), said
    assert str(files / cert) in said
    assert words in said
