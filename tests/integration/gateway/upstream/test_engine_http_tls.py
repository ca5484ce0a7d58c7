"""The engine client over TLS: who is trusted, handshakes that fail or never end, and answers as over TCP."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from pathlib import Path

import pytest

from tests.fakes.fake_scripted_engine import OK, ScriptedEngine, Then, script, scripted
from tests.support.engine_calls import PATIENCE_S, Recorder, client_of, endpoint, post
from tests.support.wait import until


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate of 127.0.0.1, with its key."""
    folder = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=engine"
    names = ["-addext", "subjectAltName=IP:127.0.0.1,DNS:engine.test", "-addext", "basicConstraints=critical,CA:TRUE"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)
    both = folder / "both.pem"
    both.write_bytes((folder / "key.pem").read_bytes() + (folder / "cert.pem").read_bytes())
    return both


@pytest.fixture
def of_engine(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


@pytest.fixture
def trusting(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate))


async def test_an_engine_with_a_trusted_certificate_is_asked(
    of_engine: ssl.SSLContext, trusting: ssl.SSLContext
) -> None:
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    until_eof = b"HTTP/1.1 200 OK\r\n\r\nok"

    scripts = [script(OK), script(chunked, cuts=range(60)), script(until_eof, "close"), script(OK)]
    async with scripted(*scripts, tls=of_engine) as engine, client_of(ssl_context=trusting) as client:
        for number, connections in enumerate((1, 1, 1, 2)):
            got = post(client, endpoint(engine.url), body=b"x" * 100_000 * number)
            assert (await got.outcome(), got.body) == ("end", b"ok")
            assert engine.connections == connections
        assert b"\r\nhost: 127.0.0.1:%d\r\n" % engine.port in engine.requests[0]


async def test_an_engine_that_nobody_vouches_for(of_engine: ssl.SSLContext) -> None:
    async with scripted(tls=of_engine) as engine, client_of() as client:
        got = post(client, endpoint(engine.url))
        assert await got.outcome() == "EngineRefusedError"
        assert got.failure is not None
        assert isinstance(got.failure.__cause__, ssl.SSLCertVerificationError)
        assert engine.requests == []


async def test_an_engine_of_another_name(of_engine: ssl.SSLContext, trusting: ssl.SSLContext) -> None:
    async with scripted(tls=of_engine) as engine, client_of(ssl_context=trusting) as client:
        got = post(client, endpoint(f"https://localhost:{engine.port}"))
        assert await got.outcome() == "EngineRefusedError"
        assert engine.requests == []


@pytest.mark.parametrize("speaks_tls", [False, True])
async def test_one_side_speaks_tls_and_the_other_does_not(
    of_engine: ssl.SSLContext, trusting: ssl.SSLContext, speaks_tls: bool
) -> None:
    async with (
        scripted(tls=of_engine if speaks_tls else None) as engine,
        # An engine that does not speak TLS never answers the greeting. The other case must not end by the time.
        client_of(ssl_context=trusting, connect_timeout_s=PATIENCE_S if speaks_tls else 0.2) as client,
    ):
        scheme = "http" if speaks_tls else "https"
        got = post(client, endpoint(f"{scheme}://127.0.0.1:{engine.port}"))
        assert await got.outcome() in (
            {"EngineBrokenError", "EngineGarbledError"} if speaks_tls else {"EngineRefusedError"}
        )
        await until("nothing is left", lambda: not engine.peers and not client.open_connections)


@pytest.mark.parametrize("how", ["timeout", "cancel", "reset"])
async def test_a_handshake_that_never_ends(trusting: ssl.SSLContext, how: str) -> None:
    timeout_s = 0.05 if how == "timeout" else 30
    async with scripted() as engine, client_of(ssl_context=trusting, connect_timeout_s=timeout_s) as client:
        got = post(client, endpoint(engine.url.replace("http:", "https:")))
        if how == "cancel":
            await until("it is connected", lambda: engine.peers)
            got.call.cancel()
        elif how == "reset":
            await until("it is connected", lambda: engine.peers)
            engine.reset_connections()
        if how != "cancel":
            assert await got.outcome() == "EngineRefusedError"
        await until("nothing is left", lambda: not engine.peers and not client.connecting_requests)


@pytest.mark.parametrize(("size", "then"), [(100_000, "hang_up"), (5_000_000, "close")])
async def test_a_paused_answer_loses_nothing_when_the_engine_closes(
    of_engine: ssl.SSLContext, trusting: ssl.SSLContext, size: int, then: Then
) -> None:
    response = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (size, b"x" * size)

    engine_says = script(response, then, cuts=[100, 200])
    async with scripted(engine_says, tls=of_engine) as engine, client_of(ssl_context=trusting) as client:
        got = Recorder()
        got.on_head = lambda: got.call.pause()  # noqa: PLW0108 - there is no call yet
        post(client, endpoint(engine.url), got)
        await until("the head is here", lambda: got.status)
        if then == "hang_up":  # it fits into the sockets
            await until("the engine has said all and closed", lambda: not engine.peers)
        for _ in range(50):
            await asyncio.sleep(0)
        assert got.ending == ""
        got.call.resume()
        assert (await got.outcome(), len(got.body)) == ("end", size)


async def cut_off(engine: ScriptedEngine, client_context: ssl.SSLContext) -> str:
    """The outcome when the connection ends without TLS's own goodbye, where its end would be the answer's."""
    async with client_of(ssl_context=client_context) as client:
        got = post(client, endpoint(engine.url))
        await until("half of it is here", lambda: got.body)
        for peer in list(engine.peers):
            peer.abort()
        return await got.outcome()


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_an_answer_without_a_length_that_is_cut_off(of_engine: ssl.SSLContext, trusting: ssl.SSLContext) -> None:
    async with scripted(script(b"HTTP/1.1 200 OK\r\n\r\nhal"), tls=of_engine) as engine:
        assert await cut_off(engine, trusting) == "EngineDiedError"
