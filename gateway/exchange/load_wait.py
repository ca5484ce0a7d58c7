"""The part of a request that waits: for a load, and for what is due by the clock."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final

from controller.schema.errors import RoundhouseError
from controller.schema.routing import ModelRoute
from controller.schema.status import ModelState
from gateway.exchange.accounting import RequestAccount
from gateway.exchange.client_response import ClientResponse
from gateway.exchange.services import Services
from gateway.protocols.common.json_bytes import json_bytes
from gateway.routing.availability import is_worth_waiting, no_longer_loading, not_loaded_in_time, refusal_of
from gateway.server.asgi import Header
from gateway.server.call import ClientCall
from gateway.tenancy.api_keys import Caller

ASKED: Final = (b"x-load-progress", b"true")
"""The header of a client that wants to be told how far the load is that it waits for."""


class LoadWait(ABC):
    """What an `Exchange` is while nothing of it is under way. It owns all of these attributes."""

    __slots__ = (
        "_account",
        "_answer",
        "_caller",
        "_client",
        "_deadline",
        "_is_over",
        "_is_stream",
        "_last_progress",
        "_load_deadline",
        "_services",
        "due_at",
        "waits_since",
    )

    _account: RequestAccount
    _answer: ClientResponse
    _caller: Caller
    _client: ClientCall
    _deadline: float
    _is_over: bool
    _load_deadline: float | None
    """Until when it waits for a load; None: it waits for none."""
    _services: Services
    _is_stream: bool
    _last_progress: bytes
    """What the client was last told of the load."""
    due_at: float
    waits_since: float | None

    @abstractmethod
    def fail_request(self, error: RoundhouseError) -> None:
        """See Exchange, as for the other two."""

    @abstractmethod
    def _run_guarded(self, step: Callable[..., None], *arguments: object) -> None: ...

    @abstractmethod
    def _renew_route(self) -> ModelRoute: ...

    def _await_load(self, route: ModelRoute, error: RoundhouseError, now: float) -> None:
        """The model is not loaded: ask for it if demand loads it. Raises `error` if waiting is vain."""
        if route.autoload:
            self._services.ledger.record_demand(route.name)
        if not is_worth_waiting(route):
            raise error
        self._load_deadline = now + self._services.settings.autoload_timeout_s
        self._set_due()

    def _find_refusal(self, route: ModelRoute) -> RoundhouseError | None:
        """Why the model takes no request now, as the caller may know it; None: it takes requests."""
        if route.state is ModelState.LOADED:
            return None
        return refusal_of(route, self._services.clock(), shows_paths=self._may_see_paths())

    def _may_see_paths(self) -> bool:
        return self._services.gate.allows_admin(self._caller, self._client.local_address)

    def follow_table(self) -> None:
        """A newer table came while the request waits."""
        self._run_guarded(self._check_table)

    def _check_table(self) -> None:
        route = self._renew_route()
        error = self._find_refusal(route)
        if error is None:
            self._load_deadline = None
            self._set_due()
        elif not is_worth_waiting(route):
            raise no_longer_loading(route) if error.entry.code == "model_not_loaded" else error
        elif self._load_deadline is None:
            self._await_load(route, error, self._services.now())
        self._tell_progress(route)

    def _tell_progress(self, route: ModelRoute) -> None:
        """A comment of how far the load is, whenever there is something new to say, to clients that asked for it."""
        if self._load_deadline is None or not self._is_stream or not asks_for_progress(self._client.headers):
            return
        comment = progress_comment(route)
        if comment != self._last_progress:
            self._last_progress = comment
            self._answer.send_comment(comment, self._services.now())

    def _set_due(self) -> None:
        due_at = self._deadline if self._load_deadline is None else min(self._deadline, self._load_deadline)
        if self._is_stream:
            settings = self._services.settings
            # The shorter one, because the first event, after which the other counts, may come at any time.
            due_at = min(due_at, self._answer.last_sent_at + min(settings.heartbeat_s, settings.hold_headers_s))
        self.due_at = due_at

    def run_due(self, now: float) -> None:
        """Something is due: the request's end, the end of its wait for a load, or a heartbeat."""
        settings, answer = self._services.settings, self._answer
        if self._is_over:
            return
        silence_s = settings.heartbeat_s if answer.status else settings.hold_headers_s
        if now >= self._deadline:
            limit = f"The answer was not complete after {settings.request_timeout_s:g} s."
            self.fail_request(RoundhouseError("request_timeout", limit))
        elif self._load_deadline is not None and now >= self._load_deadline:
            route = self._services.live.current.models.get(self._account.model)
            self.fail_request(not_loaded_in_time(self._account.model, settings.autoload_timeout_s, route))
        elif self._is_stream and now >= answer.last_sent_at + silence_s:
            answer.send_heartbeat(now)
        self._set_due()


def asks_for_progress(headers: Sequence[Header]) -> bool:
    """Whether a client wants comments of a load."""
    return any(name == ASKED[0] and value.lower() == ASKED[1] for name, value in headers)


def progress_comment(route: ModelRoute) -> bytes:
    """An SSE comment: the model, its state, and how far its load is (0 to 1), where its engine tells."""
    fields: dict[str, object] = {"model": route.name, "state": route.state.value}
    if route.progress is not None:
        fields["progress"] = round(route.progress, 3)
    return b": load-progress %b\n\n" % json_bytes(fields)
