"""The command line at an address with HTTPS: which certificates it believes, and what it says of the others."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from prometheus_client import generate_latest

from controller.cli.app import run
from controller.cli.exit_codes import ExitCode
from controller.cli.settings import own_gateway_url, read_settings
from controller.cli.up.announce import Announcer
from controller.cli.up.first_model import FirstModelWatcher
from controller.schema.admin import Drift
from gateway.metrics.registry import Metrics
from gateway.protocols.common.dialect import Usage
from tests.fakes.fake_control_api import FakeControlApi
from tests.support.cli import PROGRAM, roundhouse
from tests.support.tls_files import make_certificate


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate of `localhost` and 127.0.0.1, and its key."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
async def gateway(certificate: tuple[Path, Path]) -> AsyncIterator[TestServer]:
    """Serves HTTPS with it, knows of no drift, and whenever it is asked, `chat` has made 9 tokens more."""

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text=Drift(items=[], checked_at=1.0).model_dump_json(), content_type="application/json")

    async def count_tokens(_request: web.Request) -> web.Response:
        metrics.series_of("chat", "/v1/chat/completions").count_finished(200, 1.0, 0.1, Usage(prompt=1, completion=9))
        return web.Response(body=generate_latest(metrics.registry), content_type="text/plain")

    async def list_models(_request: web.Request) -> web.Response:
        model = {"id": "chat", "state": "loaded", "apis": ["/v1/chat/completions"]}
        return web.json_response({"data": [model]})

    metrics = Metrics()
    app = web.Application()
    app.router.add_get("/metrics", count_tokens)
    app.router.add_get("/v1/models", list_models)
    app.router.add_route("*", "/{rest:.*}", answer)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    server = TestServer(app, host="0.0.0.0", scheme="https")
    await server.start_server(ssl=context)
    yield server
    await server.close()


async def test_a_certificate_that_nobody_vouches_for(gateway: TestServer, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"https://127.0.0.1:{gateway.port}"
    assert await asyncio.to_thread(run, ["drift", "--controller", url]) == ExitCode.FAILED
    assert capsys.readouterr().err == (
        f"roundhouse: the certificate of {url} is not trusted (self-signed certificate): set SSL_CERT_FILE to a file"
        " that holds it, or its CA's\n"
    )


async def ask_as_process(url: str, certificate: Path) -> tuple[int | None, str]:
    """Exit code and stderr of `roundhouse drift`, which believes in this certificate."""
    environment = {**os.environ, "SSL_CERT_FILE": str(certificate)}
    program = await asyncio.create_subprocess_exec(
        PROGRAM, "drift", "--controller", url, env=environment, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(60):
        _, err = await program.communicate()
    return program.returncode, err.decode()


@pytest.mark.slow
async def test_one_that_ssl_cert_file_names_is_believed(gateway: TestServer, certificate: tuple[Path, Path]) -> None:
    assert await ask_as_process(f"https://127.0.0.1:{gateway.port}", certificate[0]) == (ExitCode.DONE, "")


@pytest.mark.slow
async def test_another_name_than_the_certificates(gateway: TestServer, certificate: tuple[Path, Path]) -> None:
    url = f"https://127.0.0.2:{gateway.port}"
    code, said = await ask_as_process(url, certificate[0])
    assert code == ExitCode.FAILED
    assert said == (
        f"roundhouse: the certificate of {url} is not trusted (IP address mismatch, certificate is not valid for"
        " '127.0.0.2'): ask by a name or an address that it is for\n"
    )


async def test_https_where_plain_http_is_served(capsys: pytest.CaptureFixture[str]) -> None:
    async with TestServer(web.Application()) as server:
        url = f"https://127.0.0.1:{server.port}"
        assert await asyncio.to_thread(run, ["drift", "--controller", url]) == ExitCode.FAILED
    said = capsys.readouterr().err
    assert said.startswith(f"roundhouse: no TLS with {url} (")
    assert said.endswith("): where plain HTTP is served, the address begins with http://\n")


@pytest.fixture
async def api(folder: Path) -> AsyncIterator[FakeControlApi]:
    async with FakeControlApi(folder / "controller.sock") as fake:
        yield fake


@pytest.fixture
def own_gateway(gateway: TestServer, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> str:
    """The settings of an `up` whose gateway serves HTTPS, with a certificate that this machine does not trust."""
    monkeypatch.setenv("ROUNDHOUSE_HOST", "0.0.0.0")
    monkeypatch.setenv("ROUNDHOUSE_PORT", str(gateway.port))
    monkeypatch.setenv("ROUNDHOUSE_TLS_CERT", str(certificate[0]))
    return f"https://127.0.0.1:{gateway.port}"


async def test_top_asks_its_own_gateway_over_tls(
    api: FakeControlApi, own_gateway: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await roundhouse(api, "top", "--json", "--interval", "0.1") == ExitCode.DONE
    assert json.loads(capsys.readouterr().out)["models"][0]["tokens_per_s"]


async def test_up_finds_its_first_model_over_tls(
    api: FakeControlApi, own_gateway: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert own_gateway_url(read_settings()) == own_gateway
    watcher = FirstModelWatcher(api.url, own_gateway, tmp_path, Announcer(as_json=False))
    async with asyncio.timeout(60):
        await watcher.run()
    assert f"Try: curl {own_gateway}/v1/chat/completions" in capfd.readouterr().out
