"""The command line at a gateway's address: the certificates that it believes, and the key that it shows."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from prometheus_client import generate_latest

from cli.options import own_gateway_url, read_settings
from cli.output import ExitCode
from cli.up.run import FirstModelWatcher
from cli.up.supervisor import Announcer
from contract.admin import Drift
from contract.errors import RoundhouseError
from gateway.metrics.request_metrics import Metrics
from gateway.protocols.common.dialect import Usage
from tests.fakes.fake_control_api import FakeControlApi
from tests.support.cli import PROGRAM, Cli, Output
from tests.support.networks import make_certificate


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate of `localhost` and 127.0.0.1, and its key."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
async def gateway(certificate: tuple[Path, Path]) -> AsyncIterator[TestServer]:
    """Serves HTTPS with it, knows of no drift, and whenever it is asked, `chat` has made 9 tokens more."""
    metrics = Metrics()

    async def respond(request: web.Request) -> web.Response:
        if request.path == "/metrics":
            usage = Usage(prompt=1, completion=9)
            metrics.series_of("chat", "/v1/chat/completions").count_finished(200, 1.0, 0.1, usage)
            return web.Response(body=generate_latest(metrics.registry), content_type="text/plain")
        if request.path == "/v1/models":
            model = {"id": "chat", "state": "loaded", "apis": ["/v1/chat/completions"]}
            return web.json_response({"data": [model]})
        return web.Response(text=Drift(items=[], checked_at=1.0).model_dump_json(), content_type="application/json")

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", respond)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    server = TestServer(app, host="0.0.0.0", scheme="https")
    await server.start_server(ssl=context)
    yield server
    await server.close()


async def test_a_certificate_that_nobody_vouches_for(gateway: TestServer, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"https://127.0.0.1:{gateway.port}"
    line = (
        f"roundhouse: the certificate of {url} is not trusted (self-signed certificate): set SSL_CERT_FILE to a file"
        " that holds it, or its CA's\n"
    )
    assert await Cli(capsys)("drift", "--controller", url) == Output(ExitCode.FAILED, err=line)


@pytest.mark.slow
async def test_a_certificate_of_ssl_cert_file_is_believed_for_its_names(
    gateway: TestServer, certificate: tuple[Path, Path]
) -> None:
    other = f"https://127.0.0.2:{gateway.port}"
    line = (
        f"roundhouse: the certificate of {other} is not trusted (IP address mismatch, certificate is not valid for"
        " '127.0.0.2'): ask by a name or an address that it is for\n"
    )
    environment = {**os.environ, "SSL_CERT_FILE": str(certificate[0])}
    for url, end in ((f"https://127.0.0.1:{gateway.port}", (ExitCode.DONE, "")), (other, (ExitCode.FAILED, line))):
        program = await asyncio.create_subprocess_exec(
            PROGRAM, "drift", "--controller", url, env=environment, stderr=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(60):
            _, err = await program.communicate()
        assert (program.returncode, err.decode()) == end


async def test_https_where_plain_http_is_served(capsys: pytest.CaptureFixture[str]) -> None:
    async with TestServer(web.Application()) as server:
        url = f"https://127.0.0.1:{server.port}"
        code, _, err = await Cli(capsys)("drift", "--controller", url)
    assert code == ExitCode.FAILED
    assert err.startswith(f"roundhouse: no TLS with {url} (")
    assert err.endswith("): where plain HTTP is served, the address begins with http://\n")


@pytest.fixture
def own_gateway(gateway: TestServer, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> str:
    """The settings of an `up` whose gateway serves HTTPS, with a certificate that this machine does not trust."""
    monkeypatch.setenv("ROUNDHOUSE_HOST", "0.0.0.0")
    monkeypatch.setenv("ROUNDHOUSE_PORT", str(gateway.port))
    monkeypatch.setenv("ROUNDHOUSE_TLS_CERT", str(certificate[0]))
    return f"https://127.0.0.1:{gateway.port}"


async def test_top_asks_its_own_gateway_over_tls(own_gateway: str, cli: Cli) -> None:
    shown = await cli("top", "--json", "--interval", "0.1")
    assert shown.code == ExitCode.DONE
    assert shown.json["models"][0]["tokens_per_s"]


async def test_up_finds_its_first_model_over_tls(
    api: FakeControlApi, own_gateway: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert own_gateway_url(read_settings()) == own_gateway
    watcher = FirstModelWatcher(api.url, own_gateway, tmp_path, Announcer(as_json=False))
    async with asyncio.timeout(60):
        await watcher.run()
    assert f"Try: curl {own_gateway}/v1/chat/completions" in capfd.readouterr().out


@pytest.mark.parametrize("key", ["rh-secret", None])
async def test_the_key_of_the_environment_goes_to_a_gateway_and_is_never_shown(
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
    async with TestServer(app) as server:
        code, out, err = await Cli(capsys)("drift", "--controller", str(server.make_url("")).rstrip("/"))
    assert code not in (ExitCode.DONE, ExitCode.USAGE)
    assert seen == [f"Bearer {key}" if key is not None else None]
    assert "lacks the scope" in err
    assert "rh-secret" not in out + err
