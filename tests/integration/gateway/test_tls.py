"""HTTPS by certificate files: what works without works with it, and files that cannot be are told at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from contract.errors import ErrorEnvelope
from gateway.server.tls_certificate import CHECK_S, DROPPED_BYTES
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.fakes.mock_engine import WORDS, MockEngine
from tests.support.gateway_process import ended, start
from tests.support.loop_clock import LoopClock, loop_clock
from tests.support.raw_http import raw, request, spotless
from tests.support.wait import until

__all__ = ["loop_clock"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two self-signed certificates of this machine and their keys, one of these encrypted too."""
    folder = tmp_path_factory.mktemp("tls")
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    make += " -addext subjectAltName=DNS:localhost,IP:127.0.0.1 -keyout {0}.key -out {0}.pem"
    for command in (
        make.format("a"), make.format("b"), "openssl ec -in a.key -aes256 -passout pass:x -out encrypted.key"
    ):  # fmt: skip
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    (folder / "both.pem").write_bytes((folder / "a.pem").read_bytes() + (folder / "a.key").read_bytes())
    (folder / "junk").write_text("junk")
    return folder


@contextlib.asynccontextmanager
async def secured(files: Path, **settings: Any) -> AsyncIterator[tuple[GatewayHarness, MockEngine]]:
    """A gateway with the certificate `a`, whose client trusts it, and the engine of its model `m`."""
    paths: dict[str, Any] = {"tls_cert": files / "a.pem", "tls_key": files / "a.key"} | settings
    trusting = ssl.create_default_context(cafile=str(files / "a.pem"))
    async with (
        gateway_harness(**paths) as gateway,
        engines(1) as (engine,),
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting)) as client,
    ):
        gateway.client = client
        await gateway.publish(route("m", [engine.url]))
        yield gateway, engine


async def test_blocking_streams_and_the_framework(files: Path) -> None:
    async with secured(files) as (gateway, engine):
        assert gateway.url.startswith("https://")
        for _ in range(2):
            assert (await gateway.chat()).body["choices"][0]["message"]["content"] == " ".join(WORDS)
            assert (await gateway.chat(stream=True)).content.endswith(b"data: [DONE]\n\n")
            assert (await gateway.get("/v1/models")).status == 200
            assert (await gateway.post("/v1/admin/plan", b"{}")).status == 200
        image = "x" * 3_000_000
        assert len((await gateway.chat(image=image, fault="huge", bytes=5_000_000)).content) == 5_000_000
        assert engine.requests[-1].body["image"] == image
        assert len(gateway.connections) == 1, "it was kept"
        await gateway.client.close()
        await spotless(gateway)


async def test_responses_over_websocket(files: Path) -> None:
    async with (
        secured(files) as (gateway, _),
        gateway.client.ws_connect(gateway.url + "/v1/responses") as connection,
    ):
        for _ in range(2):
            await connection.send_json({"type": "response.create", "model": "m", "input": "Hi"})
            while (await connection.receive_json())["type"] != "response.completed":
                pass
        await connection.close()
        assert connection.close_code == 1000


async def test_one_file_may_hold_both(files: Path) -> None:
    async with secured(files, tls_cert=files / "both.pem", tls_key=None) as (gateway, _):
        assert (await gateway.get("/health")).status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_cancels_the_engines_work(files: Path, stream: bool) -> None:
    async with secured(files) as (gateway, engine):
        call = asyncio.ensure_future(gateway.chat(stream=stream, fault="pause_until_release" if stream else "hold"))
        await until("it is inside", lambda: engine.running == 1)
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
        await gateway.client.close()
        await until("the engine's work is cancelled", lambda: engine.cancelled == 1)
        await spotless(gateway)


async def test_a_body_over_the_cap_is_answered_and_the_connection_ends(files: Path) -> None:
    async with secured(files, max_body_mib=1) as (gateway, _):
        headers = {"connection": "keep-alive"}
        reply = await gateway.post("/v1/chat/completions", b" " * 3_000_000, headers=headers)
        assert (reply.status, reply.headers["connection"]) == (413, "close")
        await gateway.client.close()
        await spotless(gateway)


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS", "PRI"])
async def test_who_speaks_plain_http_is_told_so_in_plain_http(files: Path, method: str) -> None:
    async with secured(files) as (gateway, engine):
        async with raw(gateway) as plain:
            plain.write(request(method))
            response = await plain.answer()
            assert (response.status, response["connection"]) == (400, "close")
            error = ErrorEnvelope.model_validate_json(response.body).error
            assert (error.code, error.status, error.request_id) == ("https_required", 400, response["x-request-id"])
            assert "HTTPS" in error.message
            assert response["date"]
            assert response["x-should-retry"] == "false"
            plain.write(request(method))  # what follows is dropped
        assert (await gateway.chat()).status == 200
        assert len(engine.requests) == 1
        await gateway.client.close()
        await spotless(gateway)


async def test_who_speaks_plain_http_at_length_and_in_pieces_is_told_so_once(files: Path) -> None:
    async with secured(files) as (gateway, engine):
        async with raw(gateway) as plain:
            await plain.send(b"P", b"OST / HTTP/1.1\r\n", b"content-length: 300000\r\n\r\n", b"x" * 300_000)
            assert (await plain.answer()).error["code"] == "https_required"
            assert len(plain.answers) == 1
        assert not engine.requests
        await spotless(gateway)


async def test_who_sends_without_an_end_is_cut_off(files: Path) -> None:
    async with secured(files) as (gateway, _):
        async with raw(gateway) as plain:
            plain.write(b"GET / HTTP/1.1\r\n\r\n")
            await plain.answer()
            plain.write(b"x" * 4 * DROPPED_BYTES)
            assert not await plain.read()
        await spotless(gateway)


@pytest.mark.parametrize("sent", [b"\x80\x2e\x01\x00\x02", b"\x15\x03\x01\x00\x02\x02\x0a", b"\x00" * 40, b"\xff" * 40])
async def test_who_speaks_neither_tls_nor_http_is_not_answered(files: Path, sent: bytes) -> None:
    async with secured(files) as (gateway, _):
        async with raw(gateway) as plain:
            plain.write(sent + b"\x00" * 100)
            while await plain.read_bytes():
                pass
            assert not plain.received.startswith(b"HTTP/")
        await spotless(gateway)


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
    code, output = await ended(await start(ROUNDHOUSE_PORT="0", **settings))
    assert (code, output.count("\n")) == (2, 1), output
    assert str(files / cert) in output
    assert words in output


async def shows(gateway: GatewayHarness, file: Path) -> bool:
    """Whether a new connection is shown this certificate."""
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    port = int(gateway.url.rpartition(":")[2])
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
    try:
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return bool(shown == ssl.PEM_cert_to_DER_cert(file.read_text()))
    finally:
        writer.transport.abort()


async def has_problem(gateway: GatewayHarness) -> bool:
    name = "roundhouse_gateway_tls_certificate_problem "
    [value] = [line.removeprefix(name) for line in (await gateway.metrics()).splitlines() if line.startswith(name)]
    assert value in ("0.0", "1.0")
    return value == "1.0"


def renew_by_rename(files: Path, folder: Path) -> None:
    """As most tools do: a new file in each one's place."""
    for suffix in ("key", "pem"):
        shutil.copyfile(files / f"b.{suffix}", folder / f"new.{suffix}")
        (folder / f"new.{suffix}").replace(folder / f"tls.{suffix}")


def renew_in_place(files: Path, folder: Path) -> None:
    for suffix in ("key", "pem"):
        (folder / f"tls.{suffix}").write_bytes((files / f"b.{suffix}").read_bytes())


def renew_by_links(files: Path, folder: Path) -> None:
    """As certbot: each file is a link, to another file afterwards."""
    for suffix in ("key", "pem"):
        (folder / "link").symlink_to(files / f"b.{suffix}")
        (folder / "link").replace(folder / f"tls.{suffix}")


def renew_by_a_folders_link(files: Path, folder: Path) -> None:
    """As a Kubernetes secret: the files are links into a folder that is a link, which alone is replaced."""
    (folder / "..new").mkdir()
    for suffix in ("key", "pem"):
        shutil.copyfile(files / f"b.{suffix}", folder / "..new" / f"tls.{suffix}")
    (folder / "link").symlink_to("..new")
    (folder / "link").replace(folder / "..data")


def lay_out_secret(files: Path, folder: Path) -> dict[str, Path]:
    """The certificate `a` as a Kubernetes secret lies there; gives the settings."""
    (folder / "..old").mkdir()
    (folder / "..data").symlink_to("..old")
    for suffix in ("key", "pem"):
        shutil.copyfile(files / f"a.{suffix}", folder / "..old" / f"tls.{suffix}")
        (folder / f"tls.{suffix}").symlink_to(f"..data/tls.{suffix}")
    return {"tls_cert": folder / "tls.pem", "tls_key": folder / "tls.key"}


@pytest.mark.parametrize("renew", [renew_by_rename, renew_in_place, renew_by_links, renew_by_a_folders_link])
async def test_a_new_certificate_is_shown_to_new_connections_and_running_ones_go_on(
    renew: Callable[[Path, Path], None], files: Path, tmp_path: Path, loop_clock: LoopClock
) -> None:
    async with secured(files, **lay_out_secret(files, tmp_path)) as (gateway, engine):
        assert await shows(gateway, files / "a.pem")
        async with gateway.chat(stream=True, fault="pause_until_release") as response:
            assert b"data: " in await response.content.readany()
            renew(files, tmp_path)
            await loop_clock.skip(CHECK_S)
            await until("it is read, in a thread", lambda: shows(gateway, files / "b.pem"))
            engine.release.set()
            assert (await response.read()).endswith(b"data: [DONE]\n\n")
        # The client trusts `a` alone, and has kept its connection.
        assert not await has_problem(gateway)


def put_folder(_: Path, folder: Path) -> None:
    (folder / "tls.key").unlink()
    (folder / "tls.key").mkdir()


SPOILS: dict[str, Callable[[Path, Path], object]] = {
    "no certificate": lambda _, folder: (folder / "tls.pem").write_text("junk"),
    "another key": lambda files, folder: shutil.copyfile(files / "b.key", folder / "tls.key"),
    "no file": lambda _, folder: (folder / "tls.pem").unlink(),
    "a folder": put_folder,
}


@pytest.mark.parametrize("spoil", SPOILS)
async def test_files_that_cannot_be_used_leave_the_old_certificate_and_are_told(
    spoil: str, files: Path, tmp_path: Path, loop_clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gateway.server.tls_certificate")
    for suffix in ("key", "pem"):
        shutil.copyfile(files / f"a.{suffix}", tmp_path / f"tls.{suffix}")
    paths = {"tls_cert": tmp_path / "tls.pem", "tls_key": tmp_path / "tls.key"}
    async with secured(files, **paths) as (gateway, _):
        assert not await has_problem(gateway)
        SPOILS[spoil](files, tmp_path)
        await loop_clock.skip(CHECK_S)
        await until("it is told", lambda: has_problem(gateway))
        for _ in range(3):
            await loop_clock.skip(CHECK_S)
            assert await shows(gateway, files / "a.pem")
        [told] = [record.getMessage() for record in caplog.records if "still served" in record.getMessage()]
        assert str(tmp_path / "tls.pem") in told
        if (tmp_path / "tls.key").is_dir():
            (tmp_path / "tls.key").rmdir()
        renew_by_rename(files, tmp_path)
        await loop_clock.skip(CHECK_S)
        await until("it is read, in a thread", lambda: shows(gateway, files / "b.pem"))
        assert not await has_problem(gateway)
