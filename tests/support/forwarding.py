"""Requests for the admin routes of a gateway, as tests of the way through it send them."""

from __future__ import annotations

import asyncio

from aiohttp import web

from controller.schema.errors import ErrorBody, ErrorEnvelope
from tests.fakes.fake_admin import ReceivedRequest
from tests.fakes.gateway_harness import GatewayHarness
from tests.support.http_client import Reply


def error_of(reply: Reply) -> ErrorBody:
    """The envelope's inner object, which has the answer's id."""
    error = ErrorEnvelope.model_validate(reply.body).error
    assert (error.status, error.request_id) == (reply.status, reply.headers["x-request-id"])
    return error


async def received(gateway: GatewayHarness, path: str = "/v1/admin/models") -> ReceivedRequest:
    assert (await gateway.get(path, encoded=True)).status == 200
    return gateway.controller.admin.requests[-1]


async def never(_: web.Request) -> web.Response:
    await asyncio.Event().wait()
    raise AssertionError
