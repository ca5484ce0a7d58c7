"""The requests that bypass FastAPI: inference, and health checks, which must be fast while the gateway is busy."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from controller.schema.errors import RoundhouseError
from gateway.api.health import HealthSources
from gateway.ingress.authenticator import Authenticator
from gateway.ingress.cors import Cors
from gateway.ingress.response_headers import refusal_headers
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.common.large_body import LargeBody
from gateway.server.asgi import Header, error_headers
from gateway.server.body_budget import BodyBudget
from gateway.server.call import ClientCall, Handler, header_lines
from gateway.server.request_reader import InferenceRoutes, WebSocketOpener

log = logging.getLogger(__name__)

HeaderCheck = Callable[[Sequence[Header]], None]

_JSON: Final = b"content-type: application/json\r\n"


class DirectRoutes:
    """Chooses what serves a client's request: it implements `request_reader.InferenceRoutes`, once per gateway.

    `GET` of `/health`, `/health/live` and `/health/ready` is answered here, without FastAPI, and but for `/health/live`
    only to who may read the metrics; all else is left to the routes of inference, which in turn leave to FastAPI what
    they do not serve.
    """

    def __init__(
        self, inference: InferenceRoutes, sources: HealthSources, cors: Cors, authenticator: Authenticator
    ) -> None:
        self._inference = inference
        self._cors = cors
        check = authenticator.check_metrics_request
        self._openers = {
            b"/health": self._opener_of(lambda: json_bytes(sources.describe_health()), check),
            b"/health/live": self._opener_of(lambda: b'{"status":"ok"}', None),
            b"/health/ready": self._opener_of(lambda: _answer_ready(sources), check),
        }

    def open_request(self, method: bytes, path: bytes) -> Callable[[ClientCall], Handler] | None:
        """Return a function that makes the request's handler: a `HealthCall` for `GET` of a health path, else what the
        routes of inference return. None: FastAPI serves the request. See `request_reader.InferenceRoutes`."""
        if method == b"GET" and (opener := self._openers.get(path)) is not None:
            return opener
        return self._inference.open_request(method, path)

    def find_websocket(self, path: bytes) -> WebSocketOpener | None:
        """Return what opens a WebSocket at `path`, as the routes of inference do; None: the path has no WebSocket."""
        return self._inference.find_websocket(path)

    def max_body_bytes(self) -> int:
        """Return the maximum number of bytes of a request's body, that of the routes of inference."""
        return self._inference.max_body_bytes()

    @property
    def body_budget(self) -> BodyBudget:
        """Budget of memory for large bodies, that of the routes of inference, shared by all connections."""
        return self._inference.body_budget

    def next_request_id(self) -> str:
        """Return a new request id, unique among all of this gateway, from the routes of inference."""
        return self._inference.next_request_id()

    def _opener_of(self, answer: Callable[[], bytes], check: HeaderCheck | None) -> Callable[[ClientCall], Handler]:
        return lambda call: HealthCall(call, self.next_request_id(), self._cors, answer, check)


class HealthCall:
    """The handler of one health check: a `gateway.server.call.Handler`. It ignores the request's body."""

    def __init__(
        self, call: ClientCall, request_id: str, cors: Cors, answer: Callable[[], bytes], check: HeaderCheck | None
    ) -> None:
        """`answer`: returns the JSON of a 200, or raises RoundhouseError. `check`: called before with the request's
        headers, and raises RoundhouseError for a request that is refused; None: none is."""
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
            answer = self._answer()
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
