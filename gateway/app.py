"""Puts the gateway together: one call, no globals, so that tests run as many as they like."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import time
from collections.abc import AsyncIterator
from importlib.metadata import version

from fastapi import FastAPI

from gateway.api import admin, chat, completions, document, embeddings, errors, health, models
from gateway.api.declare import TAGS
from gateway.controller_client import ControllerClient
from gateway.controller_link import ControllerAddress, ControllerLink
from gateway.front import FrontDoor
from gateway.hosts import HostRule
from gateway.ledger import Ledger
from gateway.live_routes import LiveRoutes
from gateway.metrics import LinkState, Metrics
from gateway.proxy import InferenceRoute, ProxyParts
from gateway.readiness import Readiness
from gateway.settings import GatewaySettings
from gateway.upstream import Upstream

DESCRIPTION = """Declared language models behind one OpenAI-compatible address.

Every answer has an `X-Request-Id`. Every error has one envelope, whose `error.code` says what went wrong and whose
`error.next_steps` say what to do. `Retry-After` comes with codes that may succeed later, `x-should-retry: false` with
those that will not."""


def create_app(settings: GatewaySettings) -> FrontDoor:
    """The ASGI application. Its lifespan opens the engine connections and the link to the controller."""
    live, ledger, link_state, metrics = LiveRoutes(), Ledger(time.time), LinkState(), Metrics()
    metrics.show_state(live, ledger, link_state, time.monotonic)
    address = ControllerAddress.parse(settings.controller_url)
    link = ControllerLink(
        address,
        f"gw-{secrets.token_hex(8)}",
        live=live,
        ledger=ledger,
        state=link_state,
        now=time.monotonic,
        jitter=random.random,
    )
    upstream, controller = Upstream(settings.connect_timeout_s), ControllerClient(address)
    forward = admin.AdminForward(controller)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        linking = asyncio.create_task(link.run())
        async with upstream, controller:
            yield
        await link.say_goodbye()
        linking.cancel()
        await asyncio.gather(linking, return_exceptions=True)

    parts = ProxyParts(
        settings=settings,
        readiness=Readiness(live, ledger, settings.autoload_timeout_s, time.time),
        ledger=ledger,
        upstream=upstream,
        metrics=metrics,
        now=time.monotonic,
    )
    number = version("roundhouse")
    app = FastAPI(
        title="Roundhouse",
        version=number,
        description=DESCRIPTION,
        openapi_tags=TAGS,
        openapi_url=None,  # document.py serves it, with the controller's part
        docs_url=None,  # its page loads scripts from a public address
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    errors.declare(app)
    routes = {api.path: InferenceRoute(api, parts) for api in (chat.API, completions.API, embeddings.API)}
    chat.declare(app, routes[chat.API.path])
    completions.declare(app, routes[completions.API.path])
    embeddings.declare(app, routes[embeddings.API.path])
    models.declare(app, live)
    health.declare(app, version=number, live=live, ledger=ledger, link=link_state, metrics=metrics)
    admin.declare(app, forward)
    document.declare(app, controller)
    rule = HostRule(settings.host, settings.allowed_hosts, is_open=settings.open)
    return FrontDoor(app, routes, rule, forward.begin_stop)
