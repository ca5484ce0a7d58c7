"""Who may use a route, and where: the scope of the key, and of admin routes the address at which a request arrived.

Every route that needs a scope is judged here, those of the web framework and those without it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection

from controller.schema.errors import RoundhouseError
from controller.schema.keys import KeyScope
from gateway.tenancy.api_keys import Caller

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class AdminGate:
    """What is asked for a route, beyond a key that is valid."""

    def __init__(self, addresses: Collection[str] | None, *, is_open: bool) -> None:
        """`addresses`: local addresses at which admin requests are taken; None: at every one. `is_open`: whether
        everybody may administer while no keys are declared."""
        self._addresses = None if addresses is None else {*map(parse_address, addresses)} - {None}
        self._is_open = is_open

    def allows_admin(self, caller: Caller, local_address: str | None) -> bool:
        """Whether `caller` may administer here. `local_address`: the connection's own end; None: it has none."""
        try:
            self.authorize_request(caller, "admin", local_address)
        except RoundhouseError:
            return False
        return True

    def authorize_request(self, caller: Caller, scope: KeyScope, local_address: str | None) -> None:
        """Refuse what `caller` may not do here. `local_address`: the connection's own end; None: it has none.

        Raises:
            RoundhouseError: `scope_required`, `admin_closed` or `admin_not_here`.
        """
        caller.require_scope(scope)
        if scope != "admin":
            return
        if caller.name is None and not self._is_open:
            raise RoundhouseError("admin_closed", "No keys are declared, and without keys nobody may administer here.")
        address = None if local_address is None else parse_address(local_address)
        if self._addresses is not None and address not in self._addresses:
            message = "The gateway takes no admin requests at the address at which this one arrived."
            raise RoundhouseError("admin_not_here", message)


def parse_address(text: str) -> IpAddress | None:
    """The address, an IPv4 one that is written as one of IPv6 as what it is; None: `text` is no address."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped_address = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped_address or address
