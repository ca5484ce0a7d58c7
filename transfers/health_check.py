"""`python -m transfers.health_check`: check that the transfers program of this container answers. For Docker's
HEALTHCHECK."""

from __future__ import annotations

import http.client
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from common.program_address import split_listen_address

TIMEOUT_S: Final = 4.0
"""Seconds. Less than the timeout of the HEALTHCHECK, so that Docker keeps a reason."""


def find_problem(environ: Mapping[str, str]) -> str | None:
    """Ask `GET /health` once, at the port in `ROUNDHOUSE_TRANSFERS_LISTEN` of these variables. Return why transfers
    does not serve; None: it answered with status 200.

    A variable that is missing, malformed or names a socket is such a reason, too; nothing is raised. Blocks;
    `TIMEOUT_S` bounds each step (the connection, then each read of the answer), not their sum.
    """
    try:
        address = split_listen_address(environ.get("ROUNDHOUSE_TRANSFERS_LISTEN", ""))
    except ValueError as error:
        return f"ROUNDHOUSE_TRANSFERS_LISTEN {error}"
    if isinstance(address, Path):
        return "ROUNDHOUSE_TRANSFERS_LISTEN names a socket, and a container listens on a port"
    connection = http.client.HTTPConnection(*address, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/health")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return f"no answer from {address[0]} port {address[1]}: {error!r}"
    finally:
        connection.close()
    return None if status == 200 else f"/health answers {status}"


def main() -> int:
    """Check once with this process' environment, and print to stdout what is wrong. Return the exit code: 0 if
    transfers serves, else 1."""
    problem = find_problem(os.environ)
    if problem is not None:
        print(problem)  # noqa: T201 - Docker keeps what a health check says
    return 0 if problem is None else 1


if __name__ == "__main__":
    sys.exit(main())
