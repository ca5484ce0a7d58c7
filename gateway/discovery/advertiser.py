"""Advertises the gateway on the local network by mDNS (RFC 6762, RFC 6763), as long as it runs."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway.discovery.advert import SERVICE_NAME, SERVICE_TYPE, TXT_RECORDS, Advert, is_container_interface

if TYPE_CHECKING:
    from zeroconf.asyncio import AsyncZeroconf

RECHECK_S: Final = 15.0
"""Seconds between two looks at this machine's addresses, which may come late or change (DHCP)."""
CONTAINER_MARKS: Final = (Path("/.dockerenv"), Path("/run/.containerenv"))
"""Files that Docker and Podman put into a container."""

log = logging.getLogger(__name__)


def list_local_ips() -> list[str]:
    """Return the IP addresses of this machine's interfaces, loopback included, IPv6 ones without their scope.
    Interfaces to containers (`advert.is_container_interface`) are left out. Raises OSError if the system does not list
    them."""
    import ifaddr  # comes with zeroconf

    adapters = [adapter for adapter in ifaddr.get_adapters() if not is_container_interface(adapter.name)]
    return [str(ip.ip if isinstance(ip.ip, str) else ip.ip[0]) for adapter in adapters for ip in adapter.ips]


def is_in_container(marks: Sequence[Path] = CONTAINER_MARKS) -> bool:
    """Return whether this process runs in a container of Docker's or Podman's: one of the files `marks` exists.
    Containers of other runtimes are not recognised."""
    return any(mark.exists() for mark in marks)


class MdnsAdvertiser:
    """Keeps one advert on the network: what `choose` returns, asked again every `recheck_s` seconds. Run `run` as a
    task, once.

    A network that cannot be used is logged once per reason, and tried again after `recheck_s`; it does not end `run`.
    """

    def __init__(self, choose: Callable[[], Advert | None], recheck_s: float = RECHECK_S) -> None:
        """`choose` returns what to advertise now; None: nothing. It is called in a thread, may block, and may raise
        OSError; any other error ends `run`."""
        self._choose = choose
        self._recheck_s = recheck_s
        self._zeroconf: AsyncZeroconf | None = None
        self._advert: Advert | None = None
        self._last_problem: str | None = None

    async def run(self, after_s: float = 0.0) -> None:
        """Advertise, after `after_s` seconds, until cancelled, then withdraw the advert, so that clients forget it at
        once. Never returns. Raises what `choose` raises, other than OSError and RuntimeError, after withdrawing the
        advert."""
        await asyncio.sleep(after_s)
        # 80 ms, in a thread, because requests may be served already.
        await asyncio.to_thread(import_module, "zeroconf.asyncio")
        try:
            while True:
                await self._follow_addresses()
                await asyncio.sleep(self._recheck_s)
        finally:
            await self._withdraw()

    async def _follow_addresses(self) -> None:
        from zeroconf import Error  # only a gateway beyond loopback pays for the import

        try:
            advert = await asyncio.to_thread(self._choose)
            if advert != self._advert:
                await self._withdraw()
                if advert is not None:
                    await self._publish(advert)
            self._last_problem = None
        except (OSError, RuntimeError, Error) as error:  # RuntimeError: an address went away meanwhile
            problem = str(error) or type(error).__name__
            if problem != self._last_problem:
                log.warning("this gateway cannot be advertised by mDNS: %s", problem)
            self._last_problem = problem
            await self._withdraw()

    async def _publish(self, advert: Advert) -> None:
        from zeroconf import IPVersion
        from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

        has_ipv6 = any(":" in ip for ip in advert.interface_ips)
        self._zeroconf = AsyncZeroconf(
            interfaces=list(advert.interface_ips), ip_version=IPVersion.All if has_ipv6 else IPVersion.V4Only
        )
        # A name of its own: the host's may be advertised by Avahi, with other addresses.
        host = f"roundhouse-{socket.gethostname().partition('.')[0]}.local."
        info = AsyncServiceInfo(
            SERVICE_TYPE,
            f"{SERVICE_NAME}.{SERVICE_TYPE}",
            port=advert.port,
            properties=dict(TXT_RECORDS),
            server=host,
            parsed_addresses=list(advert.ips),
        )
        # A second gateway of the network becomes "LocalLLM-2".
        await (await self._zeroconf.async_register_service(info, allow_name_change=True))
        self._advert = advert
        name = info.name.removesuffix(f".{SERVICE_TYPE}")
        log.info("advertised by mDNS as %s (%s) at %s, port %d", name, SERVICE_TYPE, ", ".join(advert.ips), advert.port)

    async def _withdraw(self) -> None:
        """Say goodbye for the advert and release its sockets. Nothing is raised."""
        zeroconf, self._zeroconf, self._advert = self._zeroconf, None, None
        if zeroconf is None:
            return
        try:
            await zeroconf.async_unregister_all_services()
            await zeroconf.async_close()
        except OSError as error:
            log.debug("the mDNS advert could not be withdrawn: %s", error)
