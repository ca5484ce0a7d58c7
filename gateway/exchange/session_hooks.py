"""Hooks of sessions: find the session of a request before admission, and report in `X-Session` what was decided.

Admission chooses the replica and decides (`ModelSessions`). The engine stage names the slot or the session to the
engine.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from contract.errors import RoundhouseError
from contract.routing import Endpoint, ModelRoute
from gateway.exchange.client_response import ClientResponse
from gateway.exchange.exchange import Exchange
from gateway.exchange.hooks import ConditionalHook, ExchangeHooks, Trigger
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.responses.context import ResponseContext
from gateway.sessions import (
    CONVERSATION_HEADER,
    NAMING_FIELDS,
    SESSION_FIELD,
    Sampling,
    SessionClaim,
    Transcript,
    derive_session_key,
    find_session_name,
)


class DecisionTeller:
    """Tells a client, in `X-Session`, what was decided on its turn."""

    __slots__ = ("_answer", "_told_line")

    def __init__(self, answer: ClientResponse) -> None:
        """`answer`: the client's, whose header lines are set before the first call of `tell`."""
        self._answer = answer
        self._told_line = b""

    def tell(self, claim: SessionClaim | None) -> None:
        """Set `X-Session` in the answer's header lines, in the place of what an earlier call set. Does nothing once
        headers were sent. `claim`: None, or one without a decision: the answer has no `X-Session`."""
        answer, decision = self._answer, None if claim is None else claim.decision
        if not answer.status:
            line = b"" if decision is None else b"x-session: %b\r\n" % decision.encode()
            answer.lines = answer.lines.removesuffix(self._told_line) + line
            self._told_line = line


class _Turn:
    """Reports the decision of one request's turn, to the client and in metrics."""

    __slots__ = ("_claim", "_teller")

    def __init__(self, claim: SessionClaim, answer: ClientResponse) -> None:
        self._claim = claim
        self._teller = DecisionTeller(answer)

    def tell_decision(self, _exchange: Exchange, _route: ModelRoute, _endpoint: Endpoint) -> None:
        """Tell the client. Called before each attempt, since another replica may decide otherwise."""
        self._teller.tell(self._claim)

    def count_turn(self, exchange: Exchange) -> None:
        """Count the turn in the metrics, unless no engine was asked."""
        decision = self._claim.decision
        if decision is not None:
            series = exchange.services.metrics.series_of(exchange.account.model, exchange.api.path)
            series.count_turn(decision, exchange.account.usage)


def _find_session(exchange: Exchange, route: ModelRoute) -> None:
    if not route.session_cache:
        return
    request = exchange.request
    context = request.state if isinstance(request.state, ResponseContext) else None
    name = find_session_name(request.outline_fields, exchange.client.headers, context)
    if SESSION_FIELD in request.outline_fields:
        _drop_session_field(request)
    if name is not None:
        key = derive_session_key(exchange.caller.tenant, exchange.account.model, name)
        exchange.add_hooks(ExchangeHooks(before_admission=(partial(_claim_session, key=key),)))


def _drop_session_field(request: InferenceRequest) -> None:
    """Drop the client's name of the session from the engine's request: two tenants may use the same."""
    fields = {name: value for name, value in request.outline_fields.items() if name != SESSION_FIELD}
    request.outline_fields = fields
    try:
        request.outline = json_bytes(fields)
    except RecursionError:
        raise RoundhouseError("invalid_request", "The request is nested too deeply for a session.") from None


def _claim_session(exchange: Exchange, *, key: bytes) -> bool:
    request = exchange.request
    claim = SessionClaim(key, Transcript.of(request), Sampling.of(request.outline_fields))
    exchange.join_session(claim)
    turn = _Turn(claim, exchange.answer)
    exchange.add_hooks(ExchangeHooks(before_send=(turn.tell_decision,), on_end=(turn.count_turn,)))
    return False


SESSION_HOOKS: Final = ExchangeHooks(on_request=(_find_session,))
"""For requests that make responses, whose history names a session, too. Add them after the hooks that load it."""
NAMED_SESSION_HOOKS: Final = ExchangeHooks(
    on_request=(ConditionalHook(_find_session, Trigger(NAMING_FIELDS, frozenset((CONVERSATION_HEADER,)))),)
)
"""For requests to other APIs with conversations."""
