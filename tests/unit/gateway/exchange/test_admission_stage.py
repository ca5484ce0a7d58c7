"""A request that is admitted again gives its slot to others, whatever becomes of the request itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from controller.schema.errors import RoundhouseError
from controller.schema.status import ModelState
from gateway.exchange.admission_stage import AdmissionStage
from gateway.exchange.hooks import ExchangeHooks


def refuse(*_: object) -> None:
    raise RoundhouseError("engine_unreachable", "refused by a hook")


def test_others_get_their_slots_even_if_the_request_is_refused_on_its_way_out() -> None:
    granted: list[str] = []
    services = SimpleNamespace(
        now=lambda: 1.0,
        admission=SimpleNamespace(retry_ticket=lambda *_, **__: ("an endpoint", ["a grant"])),
        turns=SimpleNamespace(grant_slots=granted.extend),
    )
    route = SimpleNamespace(state=ModelState.LOADED)
    exchange = SimpleNamespace(
        services=services,
        renew_route=lambda: route,
        hooks=ExchangeHooks(before_send=(cast("Any", refuse),)),
        engine=object(),
    )
    stage = AdmissionStage(cast("Any", exchange))
    stage._checked_route = cast("Any", route)
    stage.ticket = cast("Any", object())
    with pytest.raises(RoundhouseError, match="refused by a hook"):
        stage.retry_request("m-0", is_refused=True)
    assert granted == ["a grant"]
