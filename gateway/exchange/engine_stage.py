"""An exchange at engines: its attempts, one at a time, and what follows when one fails."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from controller.schema.errors import RoundhouseError
from controller.schema.routing import Endpoint, ModelRoute
from gateway.admission.admission import Ticket, cache_exhausted_error
from gateway.exchange.attempt import AnswerForm, Attempt
from gateway.exchange.exchange_state import ExchangeState
from gateway.exchange.gathering import learn_pace, should_gather
from gateway.protocols.common.lora_modules import route_to_module
from gateway.protocols.common.request import InferenceRequest
from gateway.sessions.session_name import SESSION_FIELD
from gateway.upstream.client import EngineBrokenError, EngineFailureError, EngineRefusedError

if TYPE_CHECKING:
    from gateway.exchange.admission_stage import AdmissionStage
    from gateway.exchange.exchange import Exchange

_SENT, _ANSWERING = ExchangeState.SENT, ExchangeState.ANSWERING


class EngineStage:
    """The attempts of one request to be answered by an engine, one at a time. It is their `AttemptOwner`.

    Made by `Exchange` with its `AdmissionStage`; both live from the complete request to its end.
    """

    __slots__ = ("_admission", "_attempt", "_exchange", "_route")

    def __init__(self, exchange: Exchange, admission: AdmissionStage) -> None:
        self._exchange = exchange
        self._admission = admission
        self._attempt: Attempt | None = None
        """The attempt that is under way, or has ended with an answer; None: none yet, or the last one failed."""
        self._route: ModelRoute
        """The model as it was at the last attempt."""

    def send_attempt(self, route: ModelRoute, endpoint: Endpoint) -> None:
        """Send the request to the replica at `endpoint`, whose slot the request has if its API takes slots.

        Returns at once; the `AttemptOwner` methods report what follows. `route`: the model in the table in force.

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
        is_gathered = may_gather and should_gather(services, route, request)
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

    def pause(self) -> None:
        """Stop reading from the engine until `resume`. Does nothing if no attempt is under way."""
        if self._attempt is not None:
            self._attempt.pause()

    def resume(self) -> None:
        """Read from the engine again after `pause`. Does nothing if no attempt is under way or paused."""
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

    # From the attempt: AttemptOwner

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

        Records how long a successful answer took, where the engine does not notice when a client leaves (`gathering`).
        """
        exchange, attempt = self._exchange, self._attempt
        if not self._route.notices_leaving and attempt is not None and exchange.answer.status == 200:
            learn_pace(exchange.services, self._route, attempt)
        exchange.close()

    def attempt_failed(self, failure: EngineFailureError, replica: str, *, resent: bool) -> None:
        """Send or queue the request again, or end it with an error, after an attempt without an answer.

        Called by the attempt.

        The request is sent or queued again if `replica` refused the connection or closed it without an answer, and ends
        with `engine_unreachable` if no replica is left to try. After any other failure it ends with
        `engine_disconnected`. `resent`: the attempt had sent the request twice, the second time on a new connection.
        Does nothing after the end of the request.
        """
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
        attempt, self._attempt = self._attempt, None
        exchange, ticket = self._exchange, self._admission.ticket
        if exchange.is_ended:
            return
        if attempt is not None:
            exchange.account.attempts += attempt.resent
        if ticket is not None:
            exchange.services.admission.record_overrun(ticket, exchange.services.now())
        if not may_resend:
            exchange.answer.broken_off_code = cache_exhausted_error(exchange.account.model).entry.code
            exchange.close()
        elif ticket is None or not exchange.has_body:
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
