"""Relays of hosts with their material, and the process of one."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil

from common.host_tls import HostContexts
from contract.hosts import EngineTls, HostReplica, HostReplicaId
from contract.routing import Endpoint
from controller.runtimes.cluster.host_relay import CHECK_NAME, CHECK_WORD
from controller.runtimes.cluster.material import ensure_material, write_credentials
from controller.runtimes.cluster.relay_keeper import RelayKeeper, describe_tls, list_relay_names, relay_folder
from tests.support.ports import free_port
from tests.support.wait import until

HOST = "127.0.0.7"


def find_relay(folder: Path) -> int | None:
    """The process that serves the table in this folder, of several the newest; None: there is none."""
    found = []
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if str(folder / "relay.json") in each.cmdline() and each.status() != psutil.STATUS_ZOMBIE:
                found.append((each.create_time(), each.pid))
    return max(found)[1] if found else None


def replica(name: str, port: int) -> HostReplica:
    identity = HostReplicaId(model="m", index=0, spec_hash="0", attempt=1)
    url = f"http://127.0.0.1:{port}"
    return HostReplica(id=identity, name=name, phase="running", created_at=0, base_url=url)


class RelaySite:
    """A relay with material, and what a client of it needs."""

    def __init__(self, folder: Path, *, is_insecure: bool = False) -> None:
        self.folder = folder
        material = ensure_material(folder, "i", is_insecure=False, now=time.time())
        self.files = write_credentials(material, folder, list_relay_names("b"), [HOST], now=time.time())
        self.port = free_port()
        self.keeper = RelayKeeper(relay_folder(folder), "b", HOST, self.port, None if is_insecure else self.files)
        self.context = HostContexts().find_context(describe_tls(self.files, ""))

    async def publish(self, *replicas: HostReplica) -> tuple[HostReplica, ...]:
        return await self.keeper.publish(replicas)

    def pid(self) -> int | None:
        """Process of the relay that listens."""
        return find_relay(relay_folder(self.folder))

    async def open(self, tls: EngineTls | None, **options: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        name = tls.server_name if tls is not None else CHECK_NAME
        context = options.get("context", self.context)
        assert isinstance(context, ssl.SSLContext)
        return await asyncio.open_connection(HOST, self.port, ssl=context, server_hostname=name)

    def endpoint(self, there: HostReplica) -> Endpoint:
        """Of a published replica, as a routing table has it."""
        assert there.base_url is not None
        assert there.tls is not None
        tls = describe_tls(self.files, there.tls.server_name)
        return Endpoint(replica=there.name, base_url=there.base_url, tls=tls)

    async def is_up(self) -> bool:
        try:
            reader, writer = await self.open(None)
            answer = await reader.read()
        except OSError:
            return False
        writer.close()
        return answer == CHECK_WORD


@contextlib.asynccontextmanager
async def running(made: RelaySite) -> AsyncIterator[None]:
    await made.keeper.start()
    try:
        if not made.keeper.is_insecure:
            await until("the relay is up", made.is_up)
        yield
    finally:
        await made.publish()
        await made.keeper.close()
        await until("the relay has ended", lambda: made.pid() is None)
