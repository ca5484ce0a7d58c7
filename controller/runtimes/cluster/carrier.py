"""The protocol of carriers, which know the hosts and carry requests to them, and the errors of a request. A carrier
decides nothing, and does not look into what it carries.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from controller.runtimes.base import RuntimeUnavailableError

log = logging.getLogger(__name__)


async def repeat_work(work: Callable[[], Awaitable[None]], name: str, pause_s: float) -> None:
    """Do `work` until cancelled: begin it anew `pause_s` seconds after each end. An exception is logged, as that of
    the work `name`; nobody else would miss it."""
    while True:
        try:
            await work()
        except Exception:
            log.exception("%s failed, and is begun anew", name)
        await asyncio.sleep(pause_s)


class HostSilentError(RuntimeUnavailableError):
    """A host does not answer: it is down, cut off or too slow. What runs there is unknown, and what it was asked to do
    may have been done. It is a RuntimeUnavailableError."""


class HostRefusedError(RuntimeUnavailableError):
    """A host may not be asked, is not known, or does not know what it was asked. It is a RuntimeUnavailableError: the
    caller may try again later."""


class CarrierDownError(RuntimeUnavailableError):
    """The carrier itself is down, so that the request reached no host: nothing is learnt of any. It is a
    RuntimeUnavailableError."""


@dataclass(frozen=True, slots=True)
class CarriedHost:
    """One host that a carrier knows. Times are Unix seconds by the clock of the controller."""

    name: str
    """Name of the host, which no other has. Empty: that of an only host without a name."""
    address: str | None = None
    """Address of the host, for people. None: not known."""
    since: float = 0.0
    """When it joined."""
    last_heard: float | None = None
    """When its last heartbeat arrived. None: none did since this controller runs."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Program to its version on the host."""
    labels: Mapping[str, str] = field(default_factory=dict)
    refusal: str | None = None
    """Why the host may not be used, half a sentence. None: it may."""
    is_excused: bool = False
    """Whether it is the carrier's own fault, for a while, that the host is not heard. `last_heard` is the present
    then."""


class HostCarrier(Protocol):
    """Knows the hosts, hears their heartbeats, and carries requests to them. Use one object in one event loop."""

    heartbeat_s: float
    """Seconds between two heartbeats of a host."""

    async def start(self) -> None:
        """Begin to hear the hosts. Call it once, before all other methods. Does not wait for any host."""

    def list_hosts(self) -> tuple[CarriedHost, ...]:
        """Return every host that was admitted, also silent ones, in the order of their names."""

    async def call(self, host: str, method: str, payload: bytes, deadline_s: float) -> bytes:
        """Send a request to a host, and return its answer. Requests to one host may overtake each other. If the caller
        is cancelled, the host may do it all the same. Raises HostSilentError if there is no answer after `deadline_s`
        seconds, or earlier if it is known that none will come, HostRefusedError if the host is not known or may not be
        used, and CarrierDownError if that is the carrier's own fault."""

    def watch(self) -> AsyncIterator[str]:
        """Yield a host's name whenever something may have changed there, it is heard again, or its heartbeats stop
        because it said goodbye, until `close`. Several changes may yield once."""

    async def admit(self, host: str) -> None:
        """Admit a host that was expelled, or that asked to join. Does nothing if it is admitted."""

    async def expel(self, host: str) -> None:
        """Forget a host: it is no longer listed, and its requests to join are refused until `admit`. Nothing is stopped
        there. Does nothing if it is not known."""

    async def close(self) -> None:
        """End `watch`, and let the hosts go. What runs there goes on."""
