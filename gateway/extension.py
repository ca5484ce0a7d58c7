"""What another package adds to the gateway, in the gateway's process: hooks, routes, tasks. The gateway never imports
that package, and is complete without it."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from fastapi import FastAPI

from common.trusted_clock import TrustedClock
from gateway.control.admin_requests import AdminRequests
from gateway.control.link import ControllerLink
from gateway.exchange.dispatcher import InferenceDispatcher
from gateway.exchange.hooks import ExchangeHooks, StateUse
from gateway.exchange.plain_responses import PLAIN_HOOKS
from gateway.exchange.services import Services
from gateway.ingress.authenticator import Authenticator
from gateway.routing.model_events import ModelEventLog
from gateway.server.request_reader import WebSocketOpener
from gateway.settings import GatewaySettings

ASSISTANT: Final = "assistant"
"""The package that is added where it is there, unless `ROUNDHOUSE_ASSISTANT` is off."""


class ExtensionError(Exception):
    """The extension cannot work with these settings. The text says why, and what to set."""


@dataclass(frozen=True, slots=True)
class GatewayParts:
    """The parts of a gateway that an extension works with."""

    settings: GatewaySettings
    services: Services
    dispatcher: InferenceDispatcher
    authenticator: Authenticator
    link: ControllerLink
    admin_requests: AdminRequests
    model_events: ModelEventLog
    trusted_clock: TrustedClock


async def _close_nothing() -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """What another package adds to one gateway: functions and values that `create_gateway` calls and reads.

    The defaults are those of the gateway alone: they add nothing, and `hooks` refuse what would need more.
    """

    hooks: Mapping[StateUse, ExchangeHooks] = field(default_factory=lambda: PLAIN_HOOKS)
    """The hooks of inference requests, by the `state` of their API, before the gateway's own."""
    find_websocket: Callable[[bytes], WebSocketOpener | None] = lambda _: None
    """Returns the function that opens a WebSocket at a path; None: there is none there."""
    declare: Callable[[FastAPI], None] = lambda _: None
    """Adds routes."""
    larger_bodies: Mapping[str, int] = field(default_factory=dict)
    """Most bytes of a body by path, where the settings' `max_body_bytes` is too few."""
    entered: Sequence[AbstractAsyncContextManager[object]] = ()
    """Contexts that the gateway's lifespan enters, in order."""
    loops: Sequence[Callable[[], Coroutine[None, None, None]]] = ()
    """Tasks as long as the gateway serves."""
    close: Callable[[], Awaitable[None]] = _close_nothing
    """Closes what is open, when the last request is over."""
    begin_stop: Callable[[], None] = lambda: None
    """See `Gateway.begin_stop`."""
    end_all: Callable[[], None] = lambda: None
    """See `Gateway.end_all`."""
    call_when_written: Callable[[Callable[[], None]], None] = lambda callback: callback()
    """See `Services.call_when_written`."""
    find_retrieval: Callable[[], str] = lambda: "off"
    """Returns the field `retrieval` of `/health`."""
    find_retrieval_notice: Callable[[], str | None] = lambda: None
    """Returns what retrieval says of itself, for operators; None: nothing."""
    has_thread: bool = False
    """Whether a thread of it must get its turn soon while the event loop is busy."""


Extend: TypeAlias = Callable[[GatewayParts], Extension]
"""Makes the extension of one gateway, which owns what it was opened with from then on. Raises OSError where files in
the state folder cannot be read."""


def add_nothing(_: GatewayParts) -> Extension:
    """Return the extension that adds nothing."""
    return Extension()


def open_extension(settings: GatewaySettings, trusted_clock: TrustedClock, lock_wait_s: float = 0.0) -> Extend:
    """Open what the assistant works with, and return the function that adds it to a gateway; `add_nothing` where the
    package is not there or `assistant` is off. Blocks.

    `lock_wait_s`: seconds that an older process of this gateway, which is about to end, may take to release what it
    stores; what needs that waits, and all else is served. 0: there is no such process.

    Raises:
        ExtensionError: it cannot work with these settings.
    """
    if not settings.assistant or importlib.util.find_spec(ASSISTANT) is None:
        return add_nothing
    extend: Extend = importlib.import_module(f"{ASSISTANT}.extension").open_assistant(
        settings, trusted_clock, lock_wait_s
    )
    return extend
