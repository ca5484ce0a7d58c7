"""An exchange at engines: its attempts to have one replica answer, one at a time, and what follows when one fails.

To gather is to ask the engine for a stream although the client asked for a blocking answer, and to build that from it.
`send_attempt` fixes which forms the answer may take (`AnswerForm`); `engine_head`, which `upstream.connection` calls,
picks the relay. After the last byte, the relay ends the client's answer, and only then `attempt_done` ends the
exchange.

An engine that does not notice when the client of a blocking call leaves notices it of a stream. Gathering costs work
for each token, so an answer that is expected to be short is not gathered.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from common.log_formats import tag_request
from contract.errors import RoundhouseError
from contract.routing import Endpoint, ModelRoute
from gateway.admission.admission import cache_exhausted_error
from gateway.admission.ticket import Ticket
from gateway.admission.token_pool import NEVER
from gateway.exchange.client_response import (
    BodyRelay,
    CacheExhaustedError,
    ClientResponse,
    CollectingRelay,
    EventRelay,
    WholeRelay,
)
from gateway.exchange.hooks import AnswerForm, ExchangeState
from gateway.exchange.services import Services
from gateway.protocols.common.bodies import route_to_module
from gateway.protocols.common.dialect import Usage
from gateway.protocols.common.request import InferenceRequest
from gateway.server.asgi import Header
from gateway.sessions import SESSION_FIELD
from gateway.tenancy.rate_limits import BYTES_PER_TOKEN, answer_bound
from gateway.upstream.connection import (
    EngineBrokenError,
    EngineCall,
    EngineFailureError,
    EngineRefusedError,
    RequestBody,
)

if TYPE_CHECKING:
    from gateway.exchange.admission_stage import AdmissionStage
    from gateway.exchange.exchange import Exchange

logger = logging.getLogger(__name__)


_SENT, _ANSWERING = ExchangeState.SENT, ExchangeState.ANSWERING
_TOKEN_REFUSED = 401


class Attempt:
    """Sends the request to one replica and passes its answer on to the client. Make one for each call of
    `send_request`. The engine's connection calls the methods `engine_*`, in the event loop. While the attempt is under
    way, the request counts as in flight at the replica; the slot belongs to the request's ticket. Call `cancel` to end
    it early."""

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
        owner: EngineStage,
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
        """The number of events of the answer at which `EngineStage.extend_answer` is called next."""
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
        # No gap between the look at the table, the choice of the replica, and the count: see InflightCounts.
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
            services.grants.grant_slots(grants)
        form, hold_bytes = self._form, services.hold_bytes
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

        Called after `engine_head`. Calls `EngineStage.extend_answer` if the answer has `mark` events or more.
        """
        assert self._relay is not None
        try:
            self._relay.feed_data(data)
        except RoundhouseError as error:
            self.cancel()
            self._owner.fail_request(error)
        except Exception:  # noqa: BLE001 - logged
            self.cancel()  # else the engine's connection would report it as a failure of the replica
            self._fail_by_defect()
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
        except CacheExhaustedError as exhausted:
            self._owner.attempt_overrun(may_resend=exhausted.may_resend)
        except RoundhouseError as error:
            self._owner.fail_request(error)
        except Exception:  # noqa: BLE001 - logged
            # The engine's connection could do nothing with it, and the request would wait for its deadline.
            self._fail_by_defect()
        else:
            self._owner.attempt_done()

    def _fail_by_defect(self) -> None:
        """Log the exception that is being handled, and fail the request by it."""
        request_id, replica = self._answer.request_id, self._endpoint.replica
        logger.exception("request %s: what %s answered", request_id, replica, extra=tag_request(request_id))
        self._owner.fail_request(RoundhouseError("internal_error", "The engine's answer could not be handled."))

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
                if self._owner.is_paused:
                    self._call.pause()
            return
        self._call = None
        self._leave_replica()
        services.ledger.record_failure(replica)
        if self._endpoint.remote:
            services.remotes.record_failure(self._model)
        services.grants.grant_slots(services.admission.record_failure(replica, services.now()))
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


class EngineStage:
    """The attempts of one request to be answered by an engine, one at a time. It is their owner: each ends with exactly
    one call of `attempt_done`, `attempt_failed`, `attempt_overrun` or `fail_request`, unless it is cancelled.

    Made by `Exchange` with its `AdmissionStage`; both live from the complete request to its end.
    """

    __slots__ = ("_admission", "_attempt", "_exchange", "_route", "is_paused")

    def __init__(self, exchange: Exchange, admission: AdmissionStage) -> None:
        self._exchange = exchange
        self.is_paused = exchange.is_client_full
        """Whether nothing is to be read from an engine, whichever attempt is under way."""
        self._admission = admission
        self._attempt: Attempt | None = None
        """The attempt that is under way, or has ended with an answer; None: none yet, or the last one failed."""
        self._route: ModelRoute
        """The model as it was at the last attempt."""

    def send_attempt(self, route: ModelRoute, endpoint: Endpoint) -> None:
        """Send the request to the replica at `endpoint`, whose slot the request has if its API takes slots.

        Returns at once; the methods for attempts report what follows. `route`: the model in the table in force.

        Raises:
            RoundhouseError: the request cannot be translated for this engine. The slot is kept: end the request.
            ValueError: the path or query of the request has characters that a request line cannot hold. End the
                request, too.
            Exception: what a hook of `shape_answer` raises. End the request, too.
        """
        exchange, option, ticket = self._exchange, self._admission.serving_option, self._admission.ticket
        exchange.move_to(_SENT)
        self._route = route
        services, request, api = exchange.services, exchange.request, exchange.api
        dialect = option.dialect
        events = dialect.open_stream(request) if exchange.is_stream else None
        may_gather = (api.streams or api.gathers) and not exchange.is_stream
        is_gathered = may_gather and _should_gather(services, route, request)
        collector = dialect.open_collector(request) if is_gathered else None
        encoded = dialect.engine_body(request, route_to_module(request, route), as_stream=collector is not None)
        if ticket is not None and (ticket.engine_slot is not None or ticket.session is not None):
            encoded = _name_session(encoded, ticket, route, request)
        body = request.fill(encoded)
        headers = services.lines.engine_headers(exchange.answer.request_id, exchange.client.headers)
        # A kept connection that broke may merely have been stale; a second one would prove nothing.
        fresh = exchange.account.attempts > 0
        exchange.account.attempts += 1
        form = AnswerForm(events, collector, dialect.get_body_converter(request), dialect.may_flow)
        if exchange.hooks.shape_answer:
            for shape_answer in exchange.hooks.shape_answer:
                form = shape_answer(exchange, form)
        self._attempt = attempt = Attempt(self, services, exchange.answer, route.name, endpoint, form)
        if ticket is not None:
            attempt.mark = services.admission.begin_answer(ticket, is_counted=attempt.asks_for_stream)
        attempt.send_request(api.method, option.target or request.target, headers, body, fresh=fresh)
        if self.is_paused:
            attempt.pause()

    def pause(self) -> None:
        """Stop reading from the engine until `resume`, also in the attempts that follow."""
        self.is_paused = True
        if self._attempt is not None:
            self._attempt.pause()

    def resume(self) -> None:
        """Read from the engine again after `pause`. Does nothing if nothing is paused."""
        self.is_paused = False
        if self._attempt is not None:
            self._attempt.resume()

    def end(self, *, is_last: bool = True) -> Attempt | None:
        """Cancel the attempt that is under way, and return it, or the one that ended with an answer.

        None: no attempt was sent, or the last one failed. The client's answer and the slot stay as they are. `is_last`
        False: another call will return the attempt again. Else the stage forgets it: an attempt refers to its stage,
        and nothing may be left in a cycle.
        """
        attempt = self._attempt
        if is_last:
            self._attempt = None
        if attempt is not None:
            attempt.cancel()
            self._exchange.account.attempts += attempt.resent
            attempt.resent = False
        return attempt

    # From the attempt

    def has_other_replica(self, replica: str) -> bool:
        """Return whether the request's model has a replica other than `replica` that takes requests; it may be full."""
        services = self._exchange.services
        return services.admission.has_other_replica(self._exchange.account.model, replica, services.now())

    def answer_begun(self) -> None:
        """Note that the engine has begun to answer, with whatever status. A large body of the request is freed: it
        cannot be sent again. Called by the attempt."""
        exchange = self._exchange
        exchange.move_to(_ANSWERING)
        if exchange.large_body is not None:
            exchange.free_body(keeps_fields=True)

    def attempt_done(self) -> None:
        """End the exchange: the client's answer is complete. Called by the attempt.

        Records how long a successful answer took, where the engine does not notice when a client leaves.
        """
        exchange, attempt = self._exchange, self._attempt
        if not self._route.notices_leaving and attempt is not None and exchange.answer.status == 200:
            _learn_pace(exchange.services, self._route, attempt)
        exchange.close()

    def attempt_failed(self, failure: EngineFailureError, replica: str, *, resent: bool) -> None:
        """Send or queue the request again, or end it with an error, after an attempt without an answer. Called by the
        attempt. The request is sent or queued again if `replica` refused the connection or closed it without an answer,
        and ends with `engine_unreachable` if no replica is left to try. After any other failure it ends with
        `engine_disconnected`. `resent`: the attempt had sent the request twice, the second time on a new connection.
        Does nothing after the end of the request."""
        self._attempt = None
        exchange, ticket = self._exchange, self._admission.ticket
        if exchange.is_ended:
            return
        exchange.account.attempts += resent
        if resent and ticket is not None:
            ticket.retries = ticket.retries.after_break(replica)  # the kept connection's
        if isinstance(failure, (EngineRefusedError, EngineBrokenError)):
            is_refused = isinstance(failure, EngineRefusedError)
            exchange.run_guarded(partial(self._admission.retry_request, replica, is_refused=is_refused))
        else:
            exchange.fail_request(RoundhouseError("engine_disconnected", f"The engine failed: {failure}."))

    def attempt_overrun(self, *, may_resend: bool) -> None:
        """Admit the request again with a larger claim on the KV cache, because the engine ended it for lack of room.

        `may_resend`: the client has no part of an answer. Otherwise, or if the body is not there any more, the request
        ends with `kv_cache_exhausted`. Called by the attempt; does nothing after the end of the request.
        """
        exchange, ticket = self._exchange, self._admission.ticket
        if exchange.is_ended:
            return
        if ticket is not None:
            exchange.services.admission.record_overrun(ticket, exchange.services.now())
        if not may_resend:
            exchange.answer.broken_off_code = cache_exhausted_error(exchange.account.model).entry.code
            exchange.close()  # with the attempt: what came of it counts
            return
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            exchange.account.attempts += attempt.resent
        if ticket is None or not exchange.has_body:
            exchange.fail_request(cache_exhausted_error(exchange.account.model))
        else:
            exchange.run_guarded(partial(self._admission.preempt_request, by_engine=True))

    def extend_answer(self, answered: int) -> None:
        """Have more KV cache tokens granted to the answer, which has `answered` events, and set the attempt's next
        `mark`.

        Requests that must leave the engine to make room are preempted or ended now; this one may be among them. Called
        by the attempt.
        """
        attempt, ticket = self._attempt, self._admission.ticket
        if attempt is None or ticket is None:
            return
        admission = self._exchange.services.admission
        attempt.mark, victims = admission.extend_answer(ticket, answered, _may_be_resent)
        for victim in victims:
            victim.owner.give_up_tokens()

    def fail_request(self, error: RoundhouseError) -> None:
        """End the request with `error`, in the form that the answer still allows. Called by the attempt; does nothing
        after the end."""
        self._exchange.fail_request(error)

    @property
    def may_be_resent(self) -> bool:
        """Whether the request can leave its engine and be sent again.

        True if an attempt is under way whose engine was asked for a stream, so that the engine notices at once, the
        client has no part of an answer, and the request's body is still there.
        """
        exchange, attempt = self._exchange, self._attempt
        is_unanswered = exchange.answer.first_byte_at is None and exchange.has_body
        return attempt is not None and attempt.asks_for_stream and is_unanswered


def _name_session(body: bytes, ticket: Ticket, route: ModelRoute, request: InferenceRequest) -> bytes:
    """Return the engine's body with the field that names the request's session or slot there, if it is to have one."""
    field = b""
    if ticket.engine_slot is not None and "id_slot" not in request.outline_fields:
        field = b'"id_slot":%d,' % ticket.engine_slot
    elif ticket.session is not None and route.session_binding in ("name", "conversation"):
        field = b'"%b":"%b",' % (SESSION_FIELD.encode(), ticket.session.key.hex().encode())
    return body.replace(b"{", b"{" + field, 1) if field else body


def _may_be_resent(ticket: Ticket) -> bool:
    owner: AdmissionStage = ticket.owner
    return owner.may_be_resent


def _should_gather(services: Services, route: ModelRoute, request: InferenceRequest) -> bool:
    """Return whether to ask the engine for a stream and gather it into the blocking answer to `request`.

    False if the engine notices when a client leaves, or the answer is expected to take less than `gather_after_s`
    seconds. True if the expected time is not known. Whether the API and its family can be gathered is not checked.
    """
    return not (route.notices_leaving or _ends_soon(services, route.name, request))


def _learn_pace(services: Services, route: ModelRoute, attempt: Attempt) -> None:
    """Record how long a complete answer took, for `_should_gather`. Does nothing if the engine counted no tokens.

    Call at the answer's last byte, for a model whose engine does not notice when a client leaves (`notices_leaving`).
    """
    usage = attempt.usage
    if usage is not None:
        pace = services.paces.of(route.name)
        pace.record_answer(usage.prompt, usage.completion, services.now() - attempt.sent_at)


def _ends_soon(services: Services, model: str, request: InferenceRequest) -> bool:
    fields = request.outline_fields
    expected_s = services.paces.of(model).expected_s(
        request.size // BYTES_PER_TOKEN, answer_bound(fields), runs_to_bound=bool(fields.get("ignore_eos"))
    )
    return expected_s is not None and expected_s < services.settings.gather_after_s
