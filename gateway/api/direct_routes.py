"""Health checks without FastAPI, because they must be fast while the gateway is busy."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from contract.errors import RoundhouseError
from gateway.api.operations import HealthSources
from gateway.ingress.access_rules import Cors, refusal_headers
from gateway.ingress.authenticator import Authenticator
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.common.large_body import LargeBody
from gateway.server.asgi import Header, error_headers
from gateway.server.call import ClientCall, Handler, header_lines

log = logging.getLogger(__name__)

HeaderCheck = Callable[[Sequence[Header]], None]
HealthAnswer = Callable[[Sequence[Header]], bytes]

_JSON: Final = b"content-type: application/json\r\n"


def list_health_openers(
    sources: HealthSources, cors: Cors, authenticator: Authenticator, next_id: Callable[[], str]
) -> Mapping[bytes, Callable[[ClientCall], Handler]]:
    """Return what makes the handlers of `GET` requests for `/health`, `/health/live` and `/health/ready`, by path.

    They answer without FastAPI, and but for `/health/live` only those who may read the metrics. `next_id`: returns a
    new request id.
    """

    def opener_of(answer: HealthAnswer, check: HeaderCheck | None) -> Callable[[ClientCall], Handler]:
        return lambda call: HealthCall(call, next_id(), cors, answer, check)

    check = authenticator.check_metrics_request
    return {
        b"/health": opener_of(lambda headers: json_bytes(sources.describe_health(headers)), check),
        b"/health/live": opener_of(lambda _: b'{"status":"ok"}', None),
        b"/health/ready": opener_of(lambda _: _answer_ready(sources), check),
    }


class HealthCall:
    """The handler of one health check: a `gateway.server.call.Handler`. It ignores the request's body."""

    def __init__(
        self, call: ClientCall, request_id: str, cors: Cors, answer: HealthAnswer, check: HeaderCheck | None
    ) -> None:
        """`answer`: returns the JSON of a 200 to the request's headers, or raises RoundhouseError. `check`: called
        before with the headers, and raises RoundhouseError for a request that is refused; None: none is."""
        self._call = call
        self._request_id = request_id
        self._lines = b"x-request-id: %b\r\n%b" % (request_id.encode(), cors.header_lines(call.headers))
        self._answer = answer
        self._check = check

    def take_body(self, body: bytes | LargeBody) -> None:
        """Free the body unread, and answer the check at once: 200, or the error envelope. Raises nothing."""
        if isinstance(body, LargeBody):
            body.free()
        try:
            if self._check is not None:
                self._check(self._call.headers)
            answer = self._answer(self._call.headers)
        except RoundhouseError as error:
            self.fail_request(error)
        except Exception:
            log.exception("request %s failed", self._request_id)
            self.fail_request(RoundhouseError("internal_error", "The gateway failed on this request."))
        else:
            self._call.send_whole(200, self._lines + _JSON, answer)

    def fail_request(self, error: RoundhouseError) -> None:
        """Answer with the envelope and the status of `error`. Call it only if nothing was answered yet: whether that is
        the case is not checked."""
        lines = self._lines + header_lines([*error_headers(error), *refusal_headers(error)])
        self._call.send_whole(error.entry.status, lines, error.json_bytes(self._request_id))

    def client_gone(self) -> None:
        """Do nothing: the check has no work that could be stopped."""

    def client_full(self) -> None:
        """Do nothing: the answer is sent whole."""

    def client_ready(self) -> None:
        """Do nothing: the answer is sent whole."""


def _answer_ready(sources: HealthSources) -> bytes:
    sources.check_ready()
    return b'{"status":"ok"}'
