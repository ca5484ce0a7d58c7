"""A gateway process that listens on several addresses: on each of them, and nowhere else."""

from __future__ import annotations

import socket
from functools import partial

import aiohttp
import pytest

from tests.support.gateway_process import ended, running, start
from tests.support.ports import free_port
from tests.support.wait import until

ELSEWHERE = "203.0.113.1"
"""An address of no machine (RFC 5737)."""


async def answers_at(host: str, port: int) -> bool:
    """Whether a request for this address, by the name of it, is served."""
    try:
        async with aiohttp.ClientSession() as client, client.get(f"http://{host}:{port}/v1/models") as answer:
            return answer.status == 200
    except aiohttp.ClientConnectorError:
        return False


async def test_it_answers_at_each_address_and_connections_to_others_are_refused() -> None:
    port = free_port()
    async with running(ROUNDHOUSE_HOST="127.0.0.2, 127.0.0.3", ROUNDHOUSE_PORT=str(port)) as (process, gateway):
        await gateway.publish()
        for host in ("127.0.0.2", "127.0.0.3"):
            await until(f"it answers at {host}", partial(answers_at, host, port))
        for host in ("127.0.0.1", "127.0.0.4"):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((host, port))
        process.terminate()
        _, said = await ended(process)
    assert f"http://127.0.0.2:{port}" in said
    assert f"http://127.0.0.3:{port}" in said
    assert "requests are refused" not in said, "all are loopback"


async def test_a_name_stands_for_all_its_addresses_of_this_machine() -> None:
    found = socket.getaddrinfo("localhost", None, type=socket.SOCK_STREAM)
    hosts = {f"[{address[0]}]" if family == socket.AF_INET6 else str(address[0]) for family, *_, address in found}
    assert "127.0.0.1" in hosts
    port = free_port()
    async with running(ROUNDHOUSE_HOST="127.0.0.2,localhost", ROUNDHOUSE_PORT=str(port)) as (_, gateway):
        await gateway.publish()
        for host in ("127.0.0.2", "127.0.0.1"):
            await until(f"it answers at {host}", partial(answers_at, host, port))


async def test_port_0_is_the_same_port_everywhere() -> None:
    process = await start(
        ROUNDHOUSE_HOST="127.0.0.2,127.0.0.3", ROUNDHOUSE_PORT="0", ROUNDHOUSE_RESPONSES_RETENTION_H="0"
    )
    try:
        assert process.stderr is not None
        ports: list[str] = []
        while len(ports) < 2:
            line = (await process.stderr.readline()).decode()
            assert line, "it ended"
            if "listening on" in line:
                ports.append(line.rstrip().rpartition(":")[2])
    finally:
        process.kill()
        await ended(process)
    assert ports[0] == ports[1] != "0"


async def test_a_port_that_is_taken_at_one_of_them_is_told_with_its_address() -> None:
    port = free_port()
    with socket.create_server(("127.0.0.3", port)):
        code, said = await ended(await start(ROUNDHOUSE_HOST="127.0.0.2,127.0.0.3", ROUNDHOUSE_PORT=str(port)))
    assert (code, said.count("\n")) == (3, 1), said
    assert f"127.0.0.3:{port}: Address already in use" in said


@pytest.mark.parametrize("foreign", ["no-such-host.invalid", ELSEWHERE])
async def test_an_address_that_is_not_this_machines_is_told_with_its_name(foreign: str) -> None:
    code, said = await ended(await start(ROUNDHOUSE_HOST=f"127.0.0.1,{foreign}", ROUNDHOUSE_PORT="0"))
    assert (code, said.count("\n")) == (3, 1), said
    assert f"cannot listen on {foreign}:0" in said


async def test_a_list_that_names_nothing_is_told() -> None:
    code, said = await ended(await start(ROUNDHOUSE_HOST=" , "))
    assert (code, said.count("\n")) == (2, 1), said
    assert "ROUNDHOUSE_HOST" in said
