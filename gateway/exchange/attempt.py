"""One attempt to have one replica answer a request."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple, Protocol

from common.log_formats import tag_request
from controller.schema.errors import RoundhouseError
from controller.schema.routing import Endpoint
from gateway.admission.token_pool import NEVER
from gateway.exchange.body_relay import BodyRelay, CacheExhaustedError, CollectingRelay, EventRelay, WholeRelay
from gateway.exchange.client_response import ClientResponse
from gateway.exchange.services import Services
from gateway.protocols.common.dialect import EventStream, StreamCollector, Usage
from gateway.server.asgi import Header
from gateway.upstream.client import (
    EngineBrokenError,
    EngineCall,
    EngineFailureError,
    EngineRefusedError,
    RequestBody,
)

logger = logging.getLogger(__name__)

_TOKEN_REFUSED = 401


class AttemptOwner(Protocol):
    """The object that an `Attempt` reports to. Implemented by `EngineStage`.

    The attempt ends with exactly one call of `attempt_done`, `attempt_failed`, `attempt_overrun` or `fail_request`,
    unless it is cancelled.
    """

    def has_other_replica(self, replica: str) -> bool:
        """Return whether the model has a replica other than `replica` that takes requests; it may be full."""

    def answer_begun(self) -> None:
        """Note that the engine has begun to answer, with whatever status.

        The attempt will not send the request again.
        """

    def attempt_done(self) -> None:
        """Note that the client's answer is complete, be it the engine's answer or the engine's error.

        The attempt ends with this call: no other follows.
        """

    def attempt_failed(self, failure: EngineFailureError, replica: str, *, resent: bool) -> None:
        """Note that the connection to `replica` failed before any part of an answer came.

        The request may be sent elsewhere. `resent`: this was the second connection, after a kept one that broke. The
        attempt ends with this call: no other follows.
        """

    def attempt_overrun(self, *, may_resend: bool) -> None:
        """Note that the engine ended the request, because its KV cache had no room for the request beside the others.

        `may_resend`: the client has no part of an answer, so the request may be sent again. False: the client's answer
        has ended with the engine's error. The attempt ends with this call: no other follows.
        """

    def extend_answer(self, answered: int) -> None:
        """Note that the answer has `answered` events, at least `Attempt.mark`. The owner must set `Attempt.mark` to a
        larger number, or end the attempt; otherwise this is called again with the next part of the answer."""

    def fail_request(self, error: RoundhouseError) -> None:
        """End the request with `error`: the engine failed in a way that another attempt would not mend.

        The attempt ends with this call: no other follows.
        """


class AnswerForm(NamedTuple):
    """How an engine's answer becomes the client's: the translations for each form that the answer may have."""

    events: EventStream | None
    """Translates a stream into the client's stream; None: the client asked for a blocking answer."""
    collector: StreamCollector | None
    """Gathers a stream into a blocking answer; None: the engine is asked for what the client asked for."""
    translate: Callable[[bytes], bytes] | None
    """Translates the body of a blocking answer; None: the body is passed on unchanged. Never gets an error."""
    may_flow: bool
    """A blocking answer that is too long to hold in memory is passed on in parts, without `translate`."""


class Attempt:
    """Sends the request to one replica and passes its answer on to the client.

    Make one for each call of `send_request`.

    The engine's connection calls the methods `engine_*`, in the event loop. While the attempt is under way, the request
    counts as in flight at the replica; the slot belongs to the owner. Call `cancel` to end it early.
    """

    __slots__ = (
        "_answer",
        "_call",
        "_endpoint",
        "_form",
        "_is_inside",
        "_is_kept_connection",
        "_model",
        "_owner",
        "_relay",
        "_request",
        "_services",
        "is_refused",
        "mark",
        "resent",
        "sent_at",
    )

    def __init__(
        self,
        owner: AttemptOwner,
        services: Services,
        answer: ClientResponse,
        model: str,
        endpoint: Endpoint,
        form: AnswerForm,
    ) -> None:
        self._owner = owner
        self._services = services
        self._answer = answer
        self._model = model
        self._endpoint = endpoint
        self._form = form
        self._relay: BodyRelay | None = None
        self._call: EngineCall | None = None
        self._is_inside = False
        self._is_kept_connection = False
        self.resent = False
        """A kept connection broke before the first byte of an answer, so the request was sent again on a new one."""
        self.is_refused = False
        """The engine answers with an error status."""
        self.mark = NEVER
        """The number of events of the answer at which `AttemptOwner.extend_answer` is called next."""
        self._request: tuple[str, str, bytes, RequestBody] | None = None
        """Method, target, headers and body, for sending them again; None before sending and once an answer begins."""
        self.sent_at = services.now()

    def send_request(self, method: str, target: str, headers: bytes, body: RequestBody, *, fresh: bool) -> None:
        """Send the request, and return at once. Call once; failures of the connection and the engine are reported to
        the owner, not raised.

        `headers`: header lines, each with CRLF. `target`: path and query in the gateway's own API. `fresh`: open a new
        connection instead of using a kept one. Raises ValueError if `method` or `target` has characters that a request
        line cannot hold: call `cancel` then.
        """
        services, endpoint = self._services, self._endpoint
        # No gap between the look at the table, the choice of the replica, and the count: see Ledger.
        services.ledger.enter_replica(self._model, endpoint.replica, self._answer.request_id)
        self._is_inside = True
        self._request = method, target, headers, body
        self._call = call = services.engines.send_request(endpoint, method, target, headers, body, self, fresh=fresh)
        self._is_kept_connection = call.connection is not None

    def cancel(self) -> None:
        """Close the engine's connection, which makes engines that notice it stop. Does nothing after the end.

        The owner is not called any more, and the client's answer stays as it is.
        """
        self._leave_replica()
        self._cancel_call()

    def pause(self) -> None:
        """Stop reading from the engine, until `resume`. Does nothing after the end."""
        if self._call is not None:
            self._call.pause()

    def resume(self) -> None:
        """Read from the engine again after `pause`. Does nothing if it is not paused, or after the end."""
        if self._call is not None:
            self._call.resume()

    @property
    def asks_for_stream(self) -> bool:
        """Whether the engine was asked for a stream, whose events can be counted."""
        return self._form.events is not None or self._form.collector is not None

    @property
    def usage(self) -> Usage | None:
        """Tokens as counted by the engine; None: it has sent no count yet."""
        return self._relay.usage if self._relay is not None else None

    @property
    def events_passed(self) -> int:
        """Events of a stream received so far, about one per token; 0 for a blocking answer."""
        return self._relay.events_passed if self._relay is not None else 0

    def count_tokens(self) -> int:
        """Return the tokens of a stream that the engine has generated so far, without its own report (`usage`).

        0 for a blocking answer, and before an answer begins.
        """
        return self._relay.count_tokens() if self._relay is not None else 0

    def engine_head(self, status: int, headers: list[Header]) -> None:
        """Handle the status and headers of an answer: choose how its body is passed on. Called before `engine_data`.

        An answer 401 of a replica that has a token and is no remote counts as a refused connection: another engine has
        its address.
        """
        services, replica = self._services, self._endpoint.replica
        if status == _TOKEN_REFUSED and self._endpoint.token is not None and not self._endpoint.remote:
            # A replica takes its own token: its address has passed to another engine, as Docker gives the address of a
            # container that has ended to the next one. The connection's first SYN may have gone to the former.
            self._cancel_call()
            self.engine_failed(EngineRefusedError("another engine listens at its address"))
            return
        self.is_refused = status >= 400
        self._request = None
        self._owner.answer_begun()
        services.ledger.record_answer(replica)
        if self._endpoint.remote:
            services.remotes.record_answer(self._model, status)
        if grants := services.admission.record_answer(replica, services.now()):
            services.turns.grant_slots(grants)
        form, hold_bytes = self._form, services.settings.answer_buffer_bytes
        streams = status == 200 and _is_event_stream(headers)
        if streams and form.events is not None:
            self._relay = EventRelay(self._answer, form.events)
        elif streams and form.collector is not None:
            self._relay = CollectingRelay(self._answer, form.collector, hold_bytes)
        else:
            self._relay = WholeRelay(
                self._answer,
                status,
                headers,
                hold_bytes,
                form.translate,
                may_flow=form.may_flow or form.translate is None,
            )

    def engine_data(self, data: bytes) -> None:
        """Pass on a part of the body. If it cannot be passed on, cancel the attempt and fail the request.

        Called after `engine_head`. Calls `AttemptOwner.extend_answer` if the answer has `mark` events or more.
        """
        assert self._relay is not None
        try:
            self._relay.feed_data(data)
        except RoundhouseError as error:
            self.cancel()
            self._owner.fail_request(error)
        else:
            if self._relay.events_passed >= self.mark:
                self._owner.extend_answer(self._relay.events_passed)

    def engine_end(self) -> None:
        """Complete the client's answer after the last byte of the engine's, and report the end to the owner."""
        assert self._relay is not None
        self._call = None
        self._leave_replica()
        try:
            self._relay.finish_answer()
        except CacheExhaustedError as error:
            self._owner.attempt_overrun(may_resend=error.may_resend)
        except RoundhouseError as error:
            self._owner.fail_request(error)
        except Exception:
            # The engine's connection could do nothing with it, and the request would wait for its deadline.
            request_id, replica = self._answer.request_id, self._endpoint.replica
            logger.exception("request %s: what %s answered", request_id, replica, extra=tag_request(request_id))
            self._owner.fail_request(RoundhouseError("internal_error", "The engine's answer could not be handled."))
        else:
            self._owner.attempt_done()

    def engine_failed(self, failure: EngineFailureError) -> None:
        """Handle a failed connection: try once more on a new one, or report to the owner.

        Only a kept connection that broke before an answer is tried again, and only if the model has no other replica.
        Any failure but that of a kept connection before an answer counts against the replica (circuit breaker, report
        to the controller).
        """
        services, replica = self._services, self._endpoint.replica
        if self._is_kept_connection and isinstance(failure, EngineBrokenError) and self._request is not None:
            # It says nothing of the replica: llama-server closes a connection after each stream, without announcing it.
            # An engine that dies looks the same, and would break the second try too, so that goes elsewhere if it can.
            self._is_kept_connection = False
            if self._owner.has_other_replica(replica):
                self._call = None
                self._leave_replica()
                self._owner.attempt_failed(failure, replica, resent=False)
            else:
                self.resent = True
                self._call = services.engines.send_request(self._endpoint, *self._request, self, fresh=True)
            return
        self._call = None
        self._leave_replica()
        services.ledger.record_failure(replica)
        if self._endpoint.remote:
            services.remotes.record_failure(self._model)
        services.turns.grant_slots(services.admission.record_failure(replica, services.now()))
        request_id, cause = self._answer.request_id, failure.__cause__
        extra = tag_request(request_id)
        logger.warning("request %s: %s: %s (%r)", request_id, replica, failure, cause, extra=extra)
        if self._relay is None:
            self._owner.attempt_failed(failure, replica, resent=self.resent)
        else:
            self._owner.fail_request(RoundhouseError("engine_disconnected", f"The engine failed: {failure}."))

    def _cancel_call(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.cancel()

    def _leave_replica(self) -> None:
        if self._is_inside:
            self._is_inside = False
            self._services.ledger.leave_replica(self._model, self._endpoint.replica, self._answer.request_id)


def _is_event_stream(headers: list[Header]) -> bool:
    for name, value in headers:
        if name == b"content-type":
            return value[:17].lower() == b"text/event-stream"
    return False
