"""Whether a program of a container answers, for Docker's HEALTHCHECK.

It imports little, because it is started every few seconds.
"""

from __future__ import annotations

import http.client
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from common.listening import split_listen_address

TIMEOUT_S: Final = 4.0
"""Seconds. Less than the timeout of the HEALTHCHECK, so that Docker keeps a reason."""


def find_problem(variable: str, environ: Mapping[str, str]) -> str | None:
    """Send `GET /health` once to the `host:port` in the environment variable `variable`. Return why the program does
    not serve; None: it answered with status 200.

    A variable that is missing, malformed or names a socket is returned as a reason, too; nothing is raised. Blocks;
    `TIMEOUT_S` bounds each step (the connection, then each read of the answer), not their sum.
    """
    try:
        address = split_listen_address(environ.get(variable, ""))
    except ValueError as error:
        return f"{variable} {error}"
    if isinstance(address, Path):
        return f"{variable} names a socket, and a container listens on a port"
    return request_health(http.client.HTTPConnection(*address, timeout=TIMEOUT_S), "/health")


def request_health(connection: http.client.HTTPConnection, path: str) -> str | None:
    """Send `GET path` over a connection, which is opened here and closed at the end. Return why the program does not
    serve (no connection, or another status); None: it answered with status 200."""
    try:
        connection.request("GET", path)
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return f"no answer from {connection.host} port {connection.port}: {error!r}"
    finally:
        connection.close()
    return None if status == 200 else f"{path} answers {status}"


def check_health(variable: str) -> int:
    """Send `GET /health` once to the `host:port` in the environment variable named `variable`, and print to stdout what
    is wrong. Return the exit code: 0 if the program answers with status 200, else 1, also where the variable is
    missing, malformed or names a socket. Blocks; `TIMEOUT_S` bounds each step."""
    return report_problem(find_problem(variable, os.environ))


def report_problem(problem: str | None) -> int:
    """Print what is wrong to stdout, if anything is, and return the exit code: 0 if nothing is, else 1."""
    if problem is not None:
        print(problem)  # noqa: T201 - Docker keeps what a health check says
    return 0 if problem is None else 1
