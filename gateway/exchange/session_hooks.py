"""Hooks of sessions: find the session of a request before admission, and report in `X-Session` what was decided.

Admission chooses the replica and decides (`ModelSessions`). The engine stage names the slot or the session to the
engine.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from controller.schema.errors import RoundhouseError
from controller.schema.routing import Endpoint, ModelRoute
from gateway.exchange.exchange import Exchange
from gateway.exchange.hooks import ExchangeHooks
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.responses.context import ResponseContext
from gateway.sessions.replica_sessions import Sampling, SessionClaim
from gateway.sessions.session_name import SESSION_FIELD, derive_session_key, find_session_name
from gateway.sessions.transcript import Transcript


class _Turn:
    """Reports the decision of one request's turn, to the client and in metrics."""

    __slots__ = ("_claim", "_told_line")

    def __init__(self, claim: SessionClaim) -> None:
        self._claim = claim
        self._told_line = b""

    def tell_decision(self, exchange: Exchange, _route: ModelRoute, _endpoint: Endpoint) -> None:
        """Set `X-Session` in the answer's header lines. Called before each attempt, since another replica may decide
        otherwise; does nothing once headers were sent."""
        answer, decision = exchange.answer, self._claim.decision
        if decision is not None and not answer.status:
            line = b"x-session: %b\r\n" % decision.encode()
            answer.lines = answer.lines.removesuffix(self._told_line) + line
            self._told_line = line

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
    exchange.session = claim = SessionClaim(key, Transcript.of(request), Sampling.of(request.outline_fields))
    turn = _Turn(claim)
    exchange.add_hooks(ExchangeHooks(before_send=(turn.tell_decision,), on_end=(turn.count_turn,)))
    return False


SESSION_HOOKS: Final = ExchangeHooks(on_request=(_find_session,))
"""For requests to APIs with conversations. Add them after the hooks that load the history that a request continues."""
