"""The relay of a host as its own process: who reaches which engine through it, and what happens to bytes, ends and
failures on the way.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from common.host_tls import HostContexts
from contract.hosts import EngineTls, HostReplica, HostReplicaId
from controller.runtimes.cluster.host_relay import CHECK_NAME, CHECK_WORD
from controller.runtimes.cluster.material import ensure_material, write_host_files
from controller.runtimes.cluster.relay_keeper import RelayKeeper, describe_tls, list_relay_names
from tests.support.ports import free_port
from tests.support.relays import find_relay
from tests.support.wait import until

HOST = "127.0.0.7"


def replica(name: str, port: int) -> HostReplica:
    identity = HostReplicaId(model="m", index=0, spec_hash="0", attempt=1)
    url = f"http://127.0.0.1:{port}"
    return HostReplica(id=identity, name=name, phase="running", created_at=0, base_url=url)


@dataclass
class Engine:
    """Takes connections, and keeps what comes. `answer` None: it sends back whatever it gets."""

    port: int = 0
    answer: bytes | None = None
    taken: list[bytes] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    connections: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while data := await reader.read(65536):
                self.taken.append(data)
                if self.answer is None:
                    writer.write(data)
                    await writer.drain()
            self.ends.append("end")
            if self.answer is not None:
                writer.write(self.answer)
            writer.close()
            await writer.wait_closed()
        except ConnectionError:
            self.ends.append("reset")


@contextlib.asynccontextmanager
async def engine(answer: bytes | None = None) -> AsyncIterator[Engine]:
    served = Engine(answer=answer)
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0)
    served.port = server.sockets[0].getsockname()[1]
    async with server:
        yield served


class Site:
    """A relay with material, and what a client of it needs."""

    def __init__(self, folder: Path, *, is_insecure: bool = False) -> None:
        self.folder = folder
        material = ensure_material(folder, "i", is_insecure=False, now=time.time())
        self.files = write_host_files(material, folder, list_relay_names("b"), [HOST], now=time.time())
        self.port = free_port()
        self.keeper = RelayKeeper(folder, "b", HOST, self.port, None if is_insecure else self.files)
        self.context = HostContexts().find_context(describe_tls(self.files, ""))

    async def publish(self, *replicas: HostReplica) -> tuple[HostReplica, ...]:
        return await self.keeper.publish(replicas)

    def pid(self) -> int | None:
        """Process of the relay that listens."""
        return find_relay(self.folder)

    async def open(self, tls: EngineTls | None, **options: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        name = tls.server_name if tls is not None else CHECK_NAME
        context = options.get("context", self.context)
        assert isinstance(context, ssl.SSLContext)
        return await asyncio.open_connection(HOST, self.port, ssl=context, server_hostname=name)

    async def is_up(self) -> bool:
        try:
            reader, writer = await self.open(None)
            answer = await reader.read()
        except OSError:
            return False
        writer.close()
        return answer == CHECK_WORD


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    made = Site(tmp_path)
    async with running(made):
        yield made


@contextlib.asynccontextmanager
async def running(made: Site) -> AsyncIterator[None]:
    await made.keeper.start()
    try:
        if not made.keeper.is_insecure:
            await until("the relay is up", made.is_up)
        yield
    finally:
        await made.publish()
        await made.keeper.close()
        await until("the relay has ended", lambda: made.pid() is None)


async def test_the_server_name_chooses_the_replica_and_bytes_arrive_as_they_were_sent(site: Site) -> None:
    content = os.urandom(9_000_000)
    async with engine() as one, engine(b"two") as two:
        first, second = await site.publish(replica("rh-1", one.port), replica("rh-2", two.port))
        assert first.base_url == f"https://{HOST}:{site.port}"
        assert first.tls is not None
        assert first.tls.server_name == "rh-1.b.roundhouse.internal"
        reader, writer = await site.open(first.tls)
        writer.write(content)
        assert hashlib.sha256(await reader.readexactly(len(content))).digest() == hashlib.sha256(content).digest()
        writer.close()
        await until("the engine saw the end", lambda: one.ends)
        assert two.connections == 0
        _, writer = await site.open(second.tls)
        writer.write(b"x")
        await until("the other one is asked", lambda: two.taken == [b"x"])
        writer.transport.abort()
        await until("an abort reaches the engine", lambda: two.ends)
