"""The image's health check, run as the Dockerfile says, against a gateway process: with TLS, and anywhere."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from gateway import health_check
from tests.support.gateway_process import running
from tests.support.ports import free_port
from tests.support.tls_files import make_certificate
from tests.support.wait import until

DOCKERFILE = Path(__file__).parents[3] / "images" / "gateway" / "Dockerfile"


def health_check_command() -> list[str]:
    """As an argv of this environment. Without `-I`, which would take the sources of another checkout."""
    found = re.search(r"^HEALTHCHECK .*\\\n +CMD (\[.*\])$", DOCKERFILE.read_text(), re.MULTILINE)
    assert found is not None
    python, *arguments = json.loads(found.group(1))
    assert python == "/opt/roundhouse/bin/python"
    return [sys.executable, *(arguments[1:] if arguments[0] == "-I" else arguments)]


async def check(settings: Mapping[str, str]) -> tuple[int, str]:
    """Exit code of the health check in a container with these settings, and what it says."""
    process = await asyncio.create_subprocess_exec(
        *health_check_command(),
        # What would lead it astray if it looked there: a proxy that nobody is.
        env={**settings, "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=DOCKERFILE.parents[2],
    )
    said, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


async def is_healthy(settings: Mapping[str, str]) -> bool:
    return (await check(settings))[0] == 0


@pytest.mark.parametrize(
    ("host", "is_tls"), [("127.0.0.1", False), ("127.0.0.1", True), ("0.0.0.0", True), ("127.0.0.2,127.0.0.3", False)]
)
async def test_a_gateway_that_serves_is_healthy(host: str, is_tls: bool, tmp_path: Path) -> None:
    settings = {"ROUNDHOUSE_HOST": host, "ROUNDHOUSE_PORT": str(free_port())}
    if is_tls:
        certificate, private_key = make_certificate(tmp_path)
        settings |= {"ROUNDHOUSE_TLS_CERT": str(certificate), "ROUNDHOUSE_TLS_KEY": str(private_key)}
    async with running(**settings) as (process, _):
        await until("it is healthy", lambda: is_healthy(settings))
        process.kill()
        await process.wait()
        code, said = await check(settings)
    assert (code, said.count("\n")) == (1, 1), said
    assert "Connection refused" in said


async def test_a_server_that_says_anything_else_is_not_healthy() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answers.pop())
        writer.close()

    answers = [b"what?\r\n\r\n", b"HTTP/1.1 503 x\r\ncontent-length: 0\r\n\r\n"]
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = str(server.sockets[0].getsockname()[1])
        code, said = await check({"ROUNDHOUSE_PORT": port})
        assert (code, said) == (1, "/health/live answers 503\n")
        code, said = await check({"ROUNDHOUSE_PORT": port})
        assert (code, said.count("\n")) == (1, 1), said


@pytest.mark.parametrize("port", ["many", "0"])
async def test_settings_that_say_nothing_are_told(port: str) -> None:
    code, said = await check({"ROUNDHOUSE_PORT": port})
    assert (code, said.count("\n")) == (1, 1), said


async def test_who_accepts_and_never_answers_is_not_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_check, "TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = health_check.HealthTarget("127.0.0.1", silent.getsockname()[1], is_tls=False)
        problem = await asyncio.to_thread(health_check.find_problem, target)
    assert problem is not None
    assert "timed out" in problem
