"""Which gateway gives way to which."""

from __future__ import annotations

import pytest

from contract.routing import GatewayProcess, GatewayReport
from controller.planning.gateway_place import PLACE_KEPT_S, PlaceHolder, describe_refusal, find_rival

NOW = 100.0
OLD, NEW, OTHER = (GatewayProcess(id=name, epoch=epoch) for name, epoch in (("gw-a", 4), ("gw-a", 5), ("gw-b", 9)))
BEFORE_ALL = GatewayProcess(id="gw-a", epoch=3)


def _claim(process: GatewayProcess, *, draining: bool = False, takes_over: bool = False) -> GatewayReport:
    return GatewayReport(
        gateway_id=process.name,
        process=process,
        draining=draining,
        takes_over=takes_over,
        stamp=None,
        addresses=("http://n",),
    )


def _holder(lost_s: float | None = None, *, is_alive: bool | None = None, is_draining: bool = False) -> PlaceHolder:
    lost_at = None if lost_s is None else NOW - lost_s
    return PlaceHolder(OLD, lost_at, is_alive, is_draining, ("http://a", "http://b"))


@pytest.mark.parametrize(
    ("claim", "holder", "is_taken"),
    [
        # The same process, with another link or with the link again.
        (_claim(OLD), _holder(), True),
        (_claim(OLD), _holder(1), True),
        # Another start of the same gateway.
        (_claim(NEW), _holder(), False),
        (_claim(NEW), _holder(is_draining=True), True),
        (_claim(NEW, draining=True), _holder(), False),
        (_claim(NEW, takes_over=True), _holder(), True),
        (_claim(BEFORE_ALL, takes_over=True), _holder(), False),
        (_claim(NEW), _holder(is_alive=False), True),
        (_claim(NEW), _holder(1), True),
        (_claim(NEW), _holder(1, is_alive=True), False),
        (_claim(NEW), _holder(1, is_alive=True, is_draining=True), True),
        (_claim(BEFORE_ALL), _holder(), False),
        (_claim(BEFORE_ALL), _holder(is_draining=True), False),
        (_claim(BEFORE_ALL, draining=True), _holder(), True),
        (_claim(BEFORE_ALL), _holder(1), False),
        # Another gateway.
        (_claim(OTHER), _holder(), False),
        (_claim(OTHER, takes_over=True), _holder(), False),
        (_claim(OTHER), _holder(is_draining=True), False),
        (_claim(OTHER), _holder(is_alive=False), True),
        (_claim(OTHER), _holder(PLACE_KEPT_S - 1), False),
        (_claim(OTHER), _holder(PLACE_KEPT_S), True),
        (_claim(OTHER), _holder(1, is_alive=False), True),
        (_claim(OTHER), _holder(-1), True),  # the clock was set back
        # A version that does not say which process it is.
        (GatewayReport(gateway_id="gw-c", stamp=None), _holder(), False),
        (GatewayReport(gateway_id="gw-c", stamp=None), _holder(PLACE_KEPT_S), True),
    ],
)
def test_a_gateways_place_is_taken_or_its_holder_found(
    claim: GatewayReport, holder: PlaceHolder, is_taken: bool
) -> None:
    assert find_rival(claim, [holder], NOW) is (None if is_taken else holder)


def test_the_refusal_names_both_and_what_to_do() -> None:
    assert describe_refusal(_claim(OTHER), _holder()) == (
        "gateway gw-b.9 at http://n is refused, because gateway gw-a.4 at http://a is connected and a controller works "
        "with one gateway: stop one of them, or give one a controller of its own (ROUNDHOUSE_CONTROLLER_URL)"
    )
    lost = PlaceHolder(OLD, NOW, None)
    assert "gateway gw-a.4 has lost its link and may come back and" in describe_refusal(_claim(OTHER), lost)
