"""Deciding which gateway a controller works with. Pure.

A controller works with one gateway: two would each fill an engine's slots, and would keep sessions, limits and stored
responses that the other does not know. Whoever asks second is refused, with the reason.

Invariant: of all processes that the place was given to and that are not seen or said to be gone, at most one takes new
requests. The others drain, or are about to because a later start of the same gateway takes over, or their link has
ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from contract.routing import GatewayProcess, GatewayReport

PLACE_KEPT_S = 30.0
"""Seconds after the end of its link for which the place is kept for a gateway of which it is not seen whether it still
runs. One that only lost its link is back within seconds."""


@dataclass(frozen=True, slots=True)
class PlaceHolder:
    """The process of the gateway that has the place, that is, works with this controller, or had it last.

    `lost_at`: Unix time at which its link ended; None: it is connected. `is_alive`: whether its process is seen to run;
    None: it cannot be seen from here. `is_draining`: it takes no new requests. `addresses`: where it listens.
    """

    process: GatewayProcess
    lost_at: float | None
    is_alive: bool | None
    is_draining: bool = False
    addresses: tuple[str, ...] = ()


def process_of(report: GatewayReport) -> GatewayProcess:
    """Return the process that sent a report. For a gateway of an older version, which does not name its process, it is
    made of the gateway's id, which is new with each start."""
    return report.process or GatewayProcess(id=report.gateway_id, epoch=0)


def find_rival(claim: GatewayReport, holders: Iterable[PlaceHolder], now: float) -> PlaceHolder | None:
    """Return the first holder because of which the gateway of the report `claim` must be refused; None: accept it.
    `now`: Unix time in seconds.

    A holder gives way to its own process, and when its own process is seen gone. To another start of the same gateway
    it gives way if the older of the two drains, if it is the older and the claim takes over, or if it is the older and
    its link has ended, unless its process is seen alive: two processes of one gateway that both take requests have a
    copied state folder. Otherwise it gives way when its link has ended `PLACE_KEPT_S` (30 s) ago.
    """
    return next((holder for holder in holders if not _gives_way(holder, claim, now)), None)


def _gives_way(holder: PlaceHolder, claim: GatewayReport, now: float) -> bool:
    process = process_of(claim)
    if holder.process == process or holder.is_alive is False:
        return True
    if holder.process.id == process.id:
        is_older = holder.process.epoch < process.epoch
        if holder.is_draining or claim.takes_over if is_older else claim.draining:
            return True
        if is_older and holder.lost_at is not None and holder.is_alive is None:
            return True
    return holder.lost_at is not None and not 0 <= now - holder.lost_at < PLACE_KEPT_S


def describe_refusal(claim: GatewayReport, rival: PlaceHolder) -> str:
    """Return the sentence that says why the gateway of the report `claim` is refused in favour of `rival`, for logs,
    status and health. It names both, with an address each; it is the same at each call until either changes."""
    state = "is connected" if rival.lost_at is None else "has lost its link and may come back"
    return (
        f"gateway {_name(claim.gateway_id, claim.addresses)} is refused, because gateway "
        f"{_name(rival.process.name, rival.addresses)} {state} and a controller works with one gateway: stop one of "
        "them, or give one a controller of its own (ROUNDHOUSE_CONTROLLER_URL)"
    )


def _name(name: str, addresses: tuple[str, ...]) -> str:
    return f"{name} at {addresses[0]}" if addresses else name
