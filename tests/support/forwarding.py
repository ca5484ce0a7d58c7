"""Requests for the admin routes of a gateway, as tests of the way through it send them."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
from aiohttp import web
from yarl import URL

from controller.schema.errors import ErrorBody, ErrorEnvelope
from tests.fakes.fake_admin import Asked
from tests.fakes.gateway_harness import GatewayHarness


def ask(here: GatewayHarness, target: str, method: str = "GET", **more: Any) -> Any:
    """A request whose target is sent as it is written."""
    return here.client.request(method, URL(here.url + target, encoded=True), **more)


async def error_of(answer: aiohttp.ClientResponse) -> ErrorBody:
    """The envelope's inner object, which has the answer's id."""
    error = ErrorEnvelope.model_validate(await answer.json()).error
    assert (error.status, error.request_id) == (answer.status, answer.headers["x-request-id"])
    return error


async def said(here: GatewayHarness, path: str = "/v1/admin/models") -> Asked:
    """What the controller sees of a request."""
    async with ask(here, path) as answer:
        assert answer.status == 200
        await answer.read()
    return here.controller.admin.asked[-1]


async def never(_: web.Request) -> web.Response:
    """An answer that does not come."""
    await asyncio.Event().wait()
    raise AssertionError
