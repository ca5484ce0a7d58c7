"""Names the parts of a gateway's surroundings that do not work as they should. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from controller.schema.routing import ModelRoute
from controller.schema.status import ModelState
from gateway.protocols.common.addresses import hide_addresses
from gateway.protocols.common.file_paths import hide_paths

LONGEST_REASON = 200
"""Characters of a model's error that are told."""


class Degradation(NamedTuple):
    """A part that does not work, and why, without paths and addresses of the server: everybody may read it.

    `part` is `controller`, `gateway`, `retrieval`, `certificate`, `clock`, `retrieval's clock`, `model NAME` or
    `replica NAME`; `reason` is a short text.
    """

    part: str
    reason: str


class Surroundings(NamedTuple):
    """What the gateway knows of the parts around it, at the time of one question about its health. `models` None: no
    routing table was received yet."""

    link: str
    """The link to the controller: `connected`, `lost`, `refused` or `never`."""
    retrieval: str
    """`off`, or as `ProgramProbe.result`."""
    models: Iterable[ModelRoute] | None
    """Models of the routing table in force; None: no table was received yet."""
    open_circuits: Iterable[str]
    """Names of the replicas whose circuit breaker is open."""
    is_certificate_broken: bool
    """Whether the latest files of the TLS certificate cannot be used, so that the previous certificate is served."""
    refusal: str | None = None
    """Why the controller refuses this gateway, while `link` is `refused`."""
    refused_gateways: tuple[str, ...] = ()
    """A sentence for each other gateway that the controller refuses, while this one is taken."""
    clock_hold: str | None = None
    """Why the gateway deletes nothing by the wall clock; None: it believes the clock."""
    retrieval_notice: str | None = None
    """The same of retrieval, as `ProgramProbe.notice`."""


def list_degradations(surroundings: Surroundings) -> list[Degradation]:
    """Return the parts that do not work, in the order controller, gateway, retrieval, certificate, clocks, models,
    replicas; empty if every part works.

    The controller counts as a part that does not work before the first routing table, and while its link is lost or it
    refuses this gateway; `gateway` are other gateways that it refuses, which somebody may take for working ones. Of
    the models only failed ones are returned, in the table's order; of the replicas those with an open circuit breaker,
    sorted by name.
    """
    found = []
    if surroundings.refusal is not None:
        found.append(Degradation("controller", hide_addresses(surroundings.refusal)))
    elif surroundings.models is None:
        found.append(Degradation("controller", "No routing table was received yet."))
    elif surroundings.link == "lost":
        found.append(Degradation("controller", "The link is lost: requests go on by the last routing table."))
    found += [Degradation("gateway", hide_addresses(each)) for each in surroundings.refused_gateways]
    if surroundings.retrieval == "down":
        found.append(Degradation("retrieval", "It does not answer: documents and searches are unavailable."))
    if surroundings.is_certificate_broken:
        found.append(Degradation("certificate", "Its files cannot be used: the previous certificate is served."))
    if surroundings.clock_hold is not None:
        found.append(Degradation("clock", surroundings.clock_hold))
    if surroundings.retrieval_notice is not None:
        found.append(Degradation("retrieval's clock", surroundings.retrieval_notice))
    failed = [route for route in surroundings.models or () if route.state == ModelState.FAILED]
    found += [Degradation(f"model {route.name}", _describe_error(route.last_error)) for route in failed]
    broken = "Its connections fail: the circuit breaker is open."
    found += [Degradation(f"replica {replica}", broken) for replica in sorted(surroundings.open_circuits)]
    return found


def hide_secrets_of_host(text: str) -> str:
    """Return a text of the controller as everybody may read it: its first line, with `[path]` and `[address]` in place
    of file paths and network addresses, cut to `LONGEST_REASON` (200) characters. Empty for an empty text."""
    return hide_addresses(hide_paths(next(iter(text.splitlines()), "")))[:LONGEST_REASON]


def _describe_error(error: str | None) -> str:
    return "It failed." if not error else hide_secrets_of_host(error)
