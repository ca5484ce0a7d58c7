"""Requests for the admin routes of a gateway, as tests of the way through it send them."""

from __future__ import annotations

import asyncio

import aiohttp
from aiohttp import web

from controller.schema.errors import ErrorBody, ErrorEnvelope
from tests.fakes.fake_admin import ReceivedRequest
from tests.fakes.gateway_harness import GatewayHarness


async def error_of(answer: aiohttp.ClientResponse) -> ErrorBody:
    """The envelope's inner object, which has the answer's id."""
    error = ErrorEnvelope.model_validate(await answer.json()).error
    assert (error.status, error.request_id) == (answer.status, answer.headers["x-request-id"])
    return error


async def received(gateway: GatewayHarness, path: str = "/v1/admin/models") -> ReceivedRequest:
    """What the controller sees of a request."""
    async with gateway.get(path, encoded=True) as answer:
        assert answer.status == 200
        await answer.read()
    return gateway.controller.admin.requests[-1]


async def never(_: web.Request) -> web.Response:
    """An answer that does not come."""
    await asyncio.Event().wait()
    raise AssertionError
