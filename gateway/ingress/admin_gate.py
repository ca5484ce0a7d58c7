"""Authorization: whether a key's scope allows a route and, for admin routes, whether the local address does.

All routes that need a scope are checked here, whether FastAPI serves them or not.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection

from controller.schema.errors import RoundhouseError
from controller.schema.keys import KeyScope
from gateway.tenancy.api_keys import Caller

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class AdminGate:
    """Checks the scope of authenticated callers, and at which local addresses admin requests may arrive.

    Made once from the settings; holds no state of requests.
    """

    def __init__(self, addresses: Collection[str] | None, *, is_open: bool) -> None:
        """`addresses`: local IP addresses at which admin requests are accepted; None: at any; empty: at none.

        Texts that are no IP address are ignored. `is_open`: whether admin requests without a key are accepted while no
        keys are declared.
        """
        self._addresses = None if addresses is None else {*map(parse_address, addresses)} - {None}
        self._is_open = is_open

    def allows_admin(self, caller: Caller, local_address: str | None) -> bool:
        """Return whether `caller` may use admin routes on a connection to `local_address`.

        `local_address`: the gateway's own IP address; None: the connection has none.
        """
        try:
            self.authorize_request(caller, "admin", local_address)
        except RoundhouseError:
            return False
        return True

    def authorize_request(self, caller: Caller, scope: KeyScope, local_address: str | None) -> None:
        """Check that `caller` may use a route of `scope`.

        `local_address`: the gateway's IP address on the request's connection; None: it has none.

        Raises:
            RoundhouseError: `scope_required` if the caller's key lacks the scope; for the scope `admin` also
                `admin_closed` if the caller has no key and `is_open` is False, or `admin_not_here` if requests at this
                local address are not accepted.
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
    """Return the IP address that `text` is; None if it is no IP address.

    IPv4-mapped IPv6 addresses (`::ffff:1.2.3.4`) become IPv4.
    """
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped_address = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped_address or address
