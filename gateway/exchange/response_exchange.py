"""One request for a response, or for the tokens of one.

It differs from others in that it may continue stored responses, that its own is stored, that it may go on without its
client, and that another request may end it.
"""

from __future__ import annotations

import asyncio
import json

from controller.schema.errors import RoundhouseError
from controller.schema.routing import Endpoint, ModelRoute
from gateway.exchange.background_ack import Receipt
from gateway.exchange.exchange import Exchange
from gateway.exchange.services import Api, Parts
from gateway.protocols.common.conversation import Fields
from gateway.protocols.responses.context import ResponseContext
from gateway.protocols.responses.response_object import begun, failed
from gateway.server.call import ClientCall
from gateway.stored_responses.records import RUNNING, History
from gateway.stored_responses.request_options import Asked


class ResponseExchange(Exchange):
    """A `registry.Run`, from the time when it is accepted."""

    __slots__ = ("_asked", "_context", "_endpoint", "_goes_on", "_is_cancelled", "_is_saved", "_is_settled", "_queued")

    def __init__(self, api: Api, client: ClientCall, services: Parts, request_id: str) -> None:
        super().__init__(api, client, services, request_id)
        self._asked = Asked(None, ())
        self._context = services.responses.context(client.headers)
        self._queued: Fields | None = None
        """What is told of one in the background before its engine says anything."""
        self._goes_on = False
        """It does so when its client leaves."""
        self._is_saved = False
        """One in the background: it is stored that it is queued."""
        self._endpoint: Endpoint | None = None
        """What it was given before that."""
        self._is_cancelled = False
        self._is_settled = False

    @property
    def context(self) -> ResponseContext:
        """See Run."""
        return self._context

    @property
    def tenant(self) -> str:
        """See Run."""
        return self._caller.tenant

    @property
    def model(self) -> str:
        """See Run."""
        return self._account.model

    @property
    def response(self) -> Fields | None:
        """See Run."""
        response = self._context.response
        if response is not None or self._queued is None or self._attempt is None:
            return response or self._queued
        return {**self._queued, "status": "in_progress"}

    # The way in

    def _take_up(self, route: ModelRoute, size: int) -> None:
        responses, fields = self._parts.responses, self._request.fields
        makes_response = self._api.state == "made"
        self._asked = options = Asked.of(fields, can_store=responses.keeps) if makes_response else Asked.to_load(fields)
        self._request.state = self._context
        self._context.stores = options.stores
        if options.loads:
            self._answer.lines = self._lines(self._enter(size))
            responses.history(self._caller, options).add_done_callback(self._loaded)
        else:
            super()._take_up(route, size)

    def _loaded(self, history_future: asyncio.Future[History]) -> None:
        if self._is_over:
            history_future.exception()  # else asyncio says that nobody has looked at it
        else:
            self._guarded(self._go_on, history_future)

    def _go_on(self, history_future: asyncio.Future[History]) -> None:
        history = history_future.result()
        if self._asked.previous is not None:
            self._parts.responses.check_sees(self._caller, self._asked.previous, history)
        self._context.history = history.items
        self._context.referenced = self._parts.responses.seen_of(self._caller, history)
        self._seek(self._looked_at_again(), self._parts.now())

    def _seek(self, route: ModelRoute, now: float) -> None:
        super()._seek(route, now)
        if self._asked.background:
            self._accept_in_background()
        elif self._asked.stores and self._streams:
            self._parts.responses.began(self)

    def _accept_in_background(self) -> None:
        responses = self._parts.responses
        self._goes_on = True
        self._queued = queued_response = {**begun(self._request.fields, self._context), "status": "queued"}
        responses.began(self)
        save_future = responses.save_first(self, queued_response)
        save_future.add_done_callback(self._saved)
        if not self._streams:
            self._answer.detach()
            self._client.handler = receipt = self._receipt(queued_response)
            save_future.add_done_callback(receipt.saved)

    def _receipt(self, queued_response: Fields) -> Receipt:
        return Receipt(self, self._client, self._answer.lines, self._answer.request_id, queued_response)

    def _saved(self, save_future: asyncio.Future[None]) -> None:
        error = save_future.exception()
        if isinstance(error, RoundhouseError):
            self.fail(error)
        self._is_saved = True
        if self._endpoint is not None and not self._is_over:
            self._guarded(self._send_held, self._endpoint)

    def _send(self, route: ModelRoute, endpoint: Endpoint) -> None:
        # One that cannot be stored could not be asked for later: its engine is not asked either.
        if self._asked.background and not self._is_saved:
            self._endpoint = endpoint
        else:
            super()._send(route, endpoint)

    def _send_held(self, endpoint: Endpoint) -> None:
        super()._send(self._looked_at_again(), endpoint)

    # What becomes of it

    def client_gone(self) -> None:
        """See Exchange."""
        if self._goes_on and not self._is_over:
            self._answer.client_gone = True
            self._answer.detach()
            self.client_ready()
        else:
            super().client_gone()

    def cancel(self) -> None:
        """See Run."""
        self.settle()
        if self._is_over or self._is_settled:
            return
        self._is_cancelled = True
        if self._context.cancel is not None:
            self._answer.end(self._context.cancel())
        else:
            self._answer.fail(RoundhouseError("state_conflict", "The response was cancelled."))
        self._close()

    def settle(self) -> None:
        """See Run."""
        if self._is_settled or not self._asked.stores:
            return
        outcome = self._came_to()
        if outcome is not None:
            self._is_settled = True
            self._parts.responses.over(self)
            self._parts.responses.save(self, outcome)

    def _close(self) -> None:
        if not self._is_over:
            super()._close()
            self.settle()
            self._parts.responses.over(self)
            self._context.cancel = None  # it refers back, see Exchange

    def _came_to(self) -> Fields | None:
        """What is to be stored; None: nothing yet, or nobody was told that there is a response."""
        context = self._context
        response = context.response or self._queued
        if response is None or not (self._is_over or _is_complete(response)):
            return None
        if _is_complete(response):
            return response
        if self._is_cancelled or (self._answer.client_gone and not self._goes_on):
            if context.cancel is None:
                return {**response, "status": "cancelled"}
            context.cancel()
            return context.response
        return failed(response, [], self._error())

    def _error(self) -> Fields:
        """Every field of the error that was told."""
        body = self._answer.error
        if body is None:
            body = RoundhouseError("internal_error", "The gateway failed on this request.").json_bytes()
        error: Fields = json.loads(body)["error"]
        return error


def _is_complete(response: Fields) -> bool:
    return response["status"] not in RUNNING
