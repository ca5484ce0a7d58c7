"""POST /v1/clock/confirm: an operator's word that the gateway's wall clock is right."""

from __future__ import annotations

import asyncio
from typing import Literal

from fastapi import FastAPI
from pydantic import BaseModel, Field

from common.trusted_clock import TrustedClock
from gateway.api.declare import ADMIN_SCOPE_CODES, INGRESS_CODES, codes_paragraph, error_responses
from gateway.ingress.route_access import require_access

_CODES = (*ADMIN_SCOPE_CODES, *INGRESS_CODES)


class ConfirmedClock(BaseModel):
    """The gateway believes its wall clock."""

    object: Literal["clock"] = "clock"
    was_held: bool = Field(description="Whether the clock was not believed before, so that nothing was deleted by it.")


def declare(app: FastAPI, trusted_clock: TrustedClock) -> None:
    """Add `POST /v1/clock/confirm` to `app`, which confirms `trusted_clock`."""

    @app.post(
        "/v1/clock/confirm",
        summary="Confirm the gateway's clock",
        description="Says that the wall clock of the gateway is right, so that what has expired by it is deleted. "
        "Needed only while `/health` names `clock` in `degraded` and nobody wants to wait.\n\n"
        + codes_paragraph(_CODES),
        tags=["operations"],
        responses=error_responses(*_CODES),
    )
    @require_access("admin")
    async def confirm_clock() -> ConfirmedClock:
        return ConfirmedClock(was_held=await asyncio.to_thread(trusted_clock.confirm))
