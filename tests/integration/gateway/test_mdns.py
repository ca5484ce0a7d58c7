"""The mDNS advert, as zeroconf's own browser on another machine of a private network sees it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.networks import Lan, private_lan

pytestmark = pytest.mark.slow

PORT = "8099"
WAIT_S = 60


@pytest.fixture(scope="module")
def lan() -> Iterator[Lan]:
    with private_lan() as made:
        yield made


@asynccontextmanager
async def program(namespace: str, *arguments: str, **variables: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A Python program in a namespace, ended at the end; its environment has no other settings of Roundhouse."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ROUNDHOUSE_")}
    pipe = asyncio.subprocess.PIPE
    command = [*Lan.enter(namespace), sys.executable, *arguments]
    process = await asyncio.create_subprocess_exec(
        *command, env={**clean, **variables}, stdin=pipe, stdout=pipe, stderr=pipe
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


def gateway(lan: Lan, folder: Path, place: str = "host", **variables: str) -> Any:
    settings = {
        "ROUNDHOUSE_PORT": PORT,
        "ROUNDHOUSE_STATE": str(folder),
        "ROUNDHOUSE_CONTROLLER_URL": "unix:/nowhere/controller.sock",
        "ROUNDHOUSE_RETRIEVAL": "off",
    }
    return program(lan.server, "-m", "tests.support.placed_gateway", place, **settings, **variables)


def browser(lan: Lan) -> Any:
    return program(lan.client, "-m", "tests.support.mdns_browser")


def canary(lan: Lan) -> Any:
    """A service that is advertised by the gateway's machine."""
    return program(lan.server, "-m", "tests.support.mdns_browser", "--canary", lan.server_ip)


async def line_with(stream: asyncio.StreamReader, words: str) -> str:
    """Wait for a line that has these words."""
    seen: list[str] = []
    async with asyncio.timeout(WAIT_S):
        while line := (await stream.readline()).decode():
            seen.append(line)
            if words in line:
                return line
    raise AssertionError(f"no line has {words!r}: {''.join(seen)}")


async def found_until(stream: asyncio.StreamReader, name: str) -> list[str]:
    """The names of all services that the browser finds, up to this one."""
    names: list[str] = []
    async with asyncio.timeout(WAIT_S):
        while not names or not names[-1].startswith(name):
            names.append(json.loads(await stream.readline())["name"])
    return names


async def test_a_browser_finds_the_gateway_and_forgets_it_at_its_end(lan: Lan, tmp_path: Path) -> None:
    async with browser(lan) as seen, gateway(lan, tmp_path, ROUNDHOUSE_HOST="0.0.0.0") as process:
        assert json.loads(await line_with(seen.stdout, "LocalLLM")) == {
            "name": "LocalLLM._localllm._tcp.local.",
            "addresses": [lan.server_ip],
            "port": int(PORT),
            "txt": {"api": "openai-compat", "path": "/v1", "health": "/health"},
        }
        process.terminate()
        assert "LocalLLM" in await line_with(seen.stdout, "removed")


async def test_in_a_container_the_setting_names_the_address(lan: Lan, tmp_path: Path) -> None:
    address = {"ROUNDHOUSE_HOST": lan.server_ip, "ROUNDHOUSE_ADVERTISE_ADDRESS": "203.0.113.7:80"}
    async with browser(lan) as seen, gateway(lan, tmp_path, "container", **address):
        found = json.loads(await line_with(seen.stdout, "LocalLLM"))
        assert (found["addresses"], found["port"]) == (["203.0.113.7"], 80)


@pytest.mark.parametrize(
    ("place", "variables"),
    [
        ("host", {"ROUNDHOUSE_HOST": "127.0.0.1"}),
        ("host", {"ROUNDHOUSE_HOST": "0.0.0.0", "ROUNDHOUSE_MDNS": "off"}),
        ("container", {"ROUNDHOUSE_HOST": "0.0.0.0"}),
    ],
    ids=["loopback only", "off", "container"],
)
async def test_nothing_is_advertised(lan: Lan, tmp_path: Path, place: str, variables: dict[str, str]) -> None:
    async with browser(lan) as seen, gateway(lan, tmp_path, place, **variables) as process:
        await line_with(process.stderr, "listening on")
        async with canary(lan):
            assert await found_until(seen.stdout, "canary") == ["canary._localllm._tcp.local."]
