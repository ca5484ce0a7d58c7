"""Hosts as objects in the controller's own process, for tests, with a switch that makes one silent, slow or gone. What
they share with real hosts is all but the wire: requests and answers travel as bytes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from controller.runtimes.cluster.carrier import CarriedHost, HostRefusedError, HostSilentError, repeat_work
from controller.runtimes.cluster.host_service import HostService
from controller.runtimes.cluster.relay_keeper import list_relay_names, open_relay
from controller.runtimes.process.runtime import ProcessRuntime
from controller.settings import TRANSFERS_SOCKET, ControllerSettings
from controller.transfers_client import TransfersClient, transfers_address

HEARTBEAT_S: Final = 0.8
"""Seconds between two heartbeats."""
HERE: Final = ""
"""Switch of a host that answers."""
SILENT: Final = "silent"
"""Switch of a host that is cut off: no heartbeats, and requests hang to their deadlines. Its engines run on."""
GONE: Final = "gone"
"""Switch of a host that is down: no heartbeats, and requests fail at once. Its engines run on, unless they are killed
by `LocalCarrier.kill_engines`."""
SLOW: Final = "slow "
"""Beginning of the switch of a host that answers late: followed by the seconds, as in `slow 0.5`."""


@dataclass(slots=True)
class _LocalHost:
    service: HostService
    address: str | None
    folder: Path | None
    """Folder in which a file `switch` moves the host's switch. None: only `LocalCarrier.set_switch` does."""
    since: float
    switch: str = HERE
    last_heard: float | None = None
    is_expelled: bool = False

    def read_switch(self) -> str:
        """Return the content of the file `switch`, or what was set, if there is none."""
        try:
            return self.switch if self.folder is None else (self.folder / "switch").read_text().strip()
        except OSError:
            return self.switch

    @property
    def is_away(self) -> bool:
        return self.read_switch() in (SILENT, GONE)


class LocalCarrier:
    """A HostCarrier whose hosts are objects. Besides its methods there are switches, for tests. Closes the runtimes of
    its hosts."""

    def __init__(
        self,
        hosts: Mapping[str, HostService],
        *,
        addresses: Mapping[str, str] | None = None,
        folders: Mapping[str, Path] | None = None,
        heartbeat_s: float = HEARTBEAT_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`hosts`: what answers on each host, by its name. `folders`: in which the file `switch` of a host is looked
        for, by its name. `clock` returns Unix time."""
        self.heartbeat_s = heartbeat_s
        self._clock = clock
        now = clock()
        self._hosts = {
            name: _LocalHost(service, (addresses or {}).get(name), (folders or {}).get(name), now)
            for name, service in sorted(hosts.items())
        }
        self._changed: set[str] = set()
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._requests: set[asyncio.Task[bytes]] = set()
        self._is_closed = False

    async def start(self) -> None:
        """Begin the heartbeats."""
        for name, host in self._hosts.items():
            works = {"beats": partial(self._beat, name, host), "events": partial(self._follow_runtime, name, host)}
            for what, work in works.items():
                task = asyncio.create_task(repeat_work(work, f"following the {what} of host {name}", self.heartbeat_s))
                self._tasks.append(task)

    async def _beat(self, name: str, host: _LocalHost) -> None:
        was_away = True
        while True:
            is_away = host.is_away or host.is_expelled
            if not is_away:
                host.last_heard = self._clock()
            if was_away and not is_away:
                self._note_change(name)
            was_away = is_away
            await asyncio.sleep(self.heartbeat_s)

    async def _follow_runtime(self, name: str, host: _LocalHost) -> None:
        async for _ in host.service.runtime.watch_events():
            if not host.is_away:
                self._note_change(name)

    def _note_change(self, name: str) -> None:
        self._changed.add(name)
        self._wake.set()

    def list_hosts(self) -> tuple[CarriedHost, ...]:
        """Return the hosts that are not expelled."""
        return tuple(
            CarriedHost(name, host.address, host.since, host.last_heard)
            for name, host in self._hosts.items()
            if not host.is_expelled
        )

    async def call(self, host: str, method: str, payload: bytes, deadline_s: float) -> bytes:
        """Let a host answer a request, as its switch has it. Raises HostSilentError and HostRefusedError."""
        found = self._hosts.get(host)
        if found is None or found.is_expelled:
            raise HostRefusedError(f"host {host} is not admitted")
        try:
            async with asyncio.timeout(deadline_s):
                await self._pass_wire(host, found)
                request = asyncio.create_task(found.service.answer_request(method, payload))
                self._requests.add(request)
                request.add_done_callback(self._requests.discard)
                # A request that has arrived is done, whatever becomes of who has asked.
                answer = await asyncio.shield(request)
                await self._pass_wire(host, found)
                return answer
        except TimeoutError:
            raise HostSilentError(f"host {host} does not answer within {deadline_s:g} s") from None

    async def _pass_wire(self, name: str, host: _LocalHost) -> None:
        switch = host.read_switch()
        if switch == GONE:
            raise HostSilentError(f"host {name} cannot be reached")
        if switch == SILENT:
            await asyncio.Event().wait()
        if switch.startswith(SLOW):
            await asyncio.sleep(float(switch.removeprefix(SLOW)) / 2)

    async def watch(self) -> AsyncIterator[str]:
        """Yield the name of a host that is heard again, or whose engines have ended."""
        while not self._is_closed:
            await self._wake.wait()
            self._wake.clear()
            changed, self._changed = self._changed, set()
            for name in sorted(changed):
                yield name

    async def admit(self, host: str) -> None:
        """Admit a host that was expelled. Raises HostRefusedError if there never was one of this name."""
        if host not in self._hosts:
            raise HostRefusedError(f"there is no host {host}")
        self._hosts[host].is_expelled = False
        self._note_change(host)

    async def expel(self, host: str) -> None:
        """Forget a host until it is admitted."""
        if host in self._hosts:
            self._hosts[host].is_expelled = True
            self._hosts[host].last_heard = None

    async def close(self) -> None:
        """End `watch`, and close the runtimes of the hosts."""
        self._is_closed = True
        self._wake.set()
        tasks = [*self._tasks, *self._requests]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for host in self._hosts.values():
            await host.service.close()
            await host.service.runtime.close()

    # For tests.

    def set_switch(self, host: str, switch: str) -> None:
        """Make a host `silent`, `gone`, `slow SECONDS`, or let it answer again (empty)."""
        self._hosts[host].switch = switch

    async def kill_engines(self, host: str) -> None:
        """End and remove everything that runs on a host, whatever its switch, as if it had lost its power."""
        runtime = self._hosts[host].service.runtime
        for replica in await runtime.list_replicas():
            await runtime.stop_replica(replica.name, 0)


def open_local_hosts(
    settings: ControllerSettings, instance: str, memory_mib: int, is_memory_limited: bool
) -> LocalCarrier:
    """Return a carrier of the hosts of `settings.hosts`, each with a ProcessRuntime, with a folder below `hosts` in the
    state folder and a loopback address of its own: 127.0.0.2 and so on. A host whose folder has a folder `models` has
    that one, and fetches files by a `transfers` that listens at `transfers.sock` beside it; the others have the
    controller's models folders. Each has `memory_mib` of main memory, and the GPUs of this machine: where there are
    some, let models of one host use them. With `settings.host_relay_port` each has a relay. Raises OSError if a folder
    cannot be made."""
    models, services, addresses, folders = settings.models.absolute(), {}, {}, {}
    for number, name in enumerate(settings.hosts, start=2):
        folders[name] = folder = settings.state.absolute() / "hosts" / name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        addresses[name] = address = f"127.0.0.{number}"
        own, transfers = folder / "models", None
        if own.is_dir():
            transfers = TransfersClient(transfers_address(f"unix:{folder / TRANSFERS_SOCKET}", None))
        roots = models if transfers is None else replace(models, folders=(own,))
        runtime = ProcessRuntime(instance, folder, roots, log_mib=settings.engine_log_mib, host=address)
        services[name] = HostService(
            runtime,
            models=roots,
            transfers=transfers,
            memory_mib=memory_mib,
            is_memory_limited=is_memory_limited,
            relay=open_relay(settings, folder, name, address),
        )
    if settings.host_relay_port is not None and not settings.insecure_private_network:
        _sign_hosts(settings, instance, folders)
    return LocalCarrier(services, addresses=addresses, folders=folders)


def _sign_hosts(settings: ControllerSettings, instance: str, folders: Mapping[str, Path]) -> None:
    """Write certificates as of a head and of hosts that joined, where there are none. Raises OSError."""
    from controller.runtimes.cluster.material import (  # the extra `cluster`
        HostCredentials,
        ensure_material,
        write_credentials,
    )

    state = settings.state.absolute()
    material = ensure_material(state, instance, is_insecure=False, now=time.time())
    for place, names in [(state, ["head"]), *((folder, list_relay_names(name)) for name, folder in folders.items())]:
        if not HostCredentials.in_state(place).key.exists():
            write_credentials(material, place, names, [], now=time.time())
