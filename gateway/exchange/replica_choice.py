"""The choice of a replica by the client, for requests about what one engine keeps: its slots, properties, adapters.
Pure."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl

from controller.schema.errors import RoundhouseError
from controller.schema.routing import Endpoint, ModelRoute

_PARAM: Final = "replica"


HEADER: Final = b"x-replica: %b\r\n"
"""The header line of an answer that one replica gave by its own state."""


def find_named_replica(route: ModelRoute, query: bytes, *, must_choose: bool) -> Endpoint | None:
    """Return the endpoint of the replica that `query` names in `replica`, by its name or its number; None: any replica
    may answer.

    `must_choose`: the request is about one replica's state, so that one of several must be named.

    Raises:
        RoundhouseError: `invalid_request`: the query names no replica that serves the model, or none although several
            do and `must_choose` is set. The message lists the replicas.
    """
    endpoints = route.endpoints
    wanted = dict(parse_qsl(query.decode("latin-1"))).get(_PARAM) if query else None
    if wanted is None:
        if not must_choose or len(endpoints) < 2:
            return None
        raise _refuse(f"{route.name!r} has {len(endpoints)} replicas, each with a state of its own", route)
    found = next((each for each in endpoints if wanted in (each.replica, str(each.index))), None)
    if found is None:
        raise _refuse(f"No replica {wanted[:100]!r} serves {route.name!r} now", route)
    return found


def _refuse(reason: str, route: ModelRoute) -> RoundhouseError:
    names = ", ".join(each.replica for each in route.endpoints)
    first = route.endpoints[0].index if route.endpoints else 0
    return RoundhouseError(
        "invalid_request", f"{reason}. Name one: `?replica={first}`, or by name: {names}.", param=_PARAM
    )
