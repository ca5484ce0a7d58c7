"""`python -m gateway.health_check`: check that the gateway of this container answers. For Docker's HEALTHCHECK.

The check reads the gateway's environment variables. It imports little, because it is started every few seconds.
"""

from __future__ import annotations

import http.client
import os
import ssl
import sys
from collections.abc import Mapping
from typing import Final, NamedTuple

from common.health_check import report_problem, request_health
from common.listening import pick_local_host, split_hosts

TIMEOUT_S: float = 4
"""Seconds. Less than the timeout of the HEALTHCHECK, so that Docker keeps a reason."""
DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = "8080"


class HealthTarget(NamedTuple):
    """Where the health check sends its request: a local address or name, a port, and whether the gateway serves HTTPS
    there (`is_tls`), as `find_target` found them."""

    host: str
    port: int
    is_tls: bool


def find_target(environ: Mapping[str, str]) -> HealthTarget:
    """Return the local address of a gateway that runs with these environment variables, and whether it has TLS.
    `ROUNDHOUSE_HOST` is 127.0.0.1 if unset or empty, `ROUNDHOUSE_PORT` 8080. Connects to nothing and resolves no name.

    Raises:
        ValueError: `ROUNDHOUSE_HOST` names no address, or `ROUNDHOUSE_PORT` is no port, or 0.
    """
    hosts = split_hosts(environ.get("ROUNDHOUSE_HOST") or DEFAULT_HOST)
    port_text = environ.get("ROUNDHOUSE_PORT") or DEFAULT_PORT
    if not port_text.isdecimal() or not 0 < int(port_text) < 65536:
        raise ValueError(f"ROUNDHOUSE_PORT is {port_text}, which is no port to ask at")
    return HealthTarget(pick_local_host(hosts), int(port_text), is_tls=bool(environ.get("ROUNDHOUSE_TLS_CERT")))


def find_problem(target: HealthTarget) -> str | None:
    """Ask the gateway's /health/live once. Returns why the gateway does not serve; None: it answers 200.

    Blocks for about `TIMEOUT_S` (4 s) at most to connect, and for each read. Failed connections are returned as text,
    not raised. The TLS certificate is not verified.
    """
    return request_health(_open_connection(target), "/health/live")


def _open_connection(target: HealthTarget) -> http.client.HTTPConnection:
    """Return a connection that is not open yet. urllib would follow the container's proxy settings."""
    if not target.is_tls:
        return http.client.HTTPConnection(target.host, target.port, timeout=TIMEOUT_S)
    # The certificate is for the names that clients use, not for this address, which needs no proof.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(target.host, target.port, timeout=TIMEOUT_S, context=context)


def main() -> int:
    """Check once, and print to stdout what is wrong. Returns the exit code: 0 if the gateway serves, else 1."""
    try:
        problem = find_problem(find_target(os.environ))
    except ValueError as error:
        problem = str(error)
    return report_problem(problem)


if __name__ == "__main__":
    sys.exit(main())
