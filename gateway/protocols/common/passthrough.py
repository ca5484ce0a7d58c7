"""The base of dialects for engines that serve the client's API themselves: requests and answers pass unchanged.
Pure."""

from __future__ import annotations

from collections.abc import Callable

from controller.schema.errors import RoundhouseError
from controller.schema.routing import ModelRoute
from gateway.protocols.common import errors, usage
from gateway.protocols.common.capabilities import check_capabilities
from gateway.protocols.common.dialect import Usage
from gateway.protocols.common.request import InferenceRequest


class PassthroughDialect:
    """Base of each `Dialect` that passes requests and answers through. Has the methods that do nothing to them; a
    subclass adds bodies, streams and errors."""

    id_header: bytes | None = None

    may_flow: bool = False

    def can_serve(self, request: InferenceRequest) -> bool:
        """Return True: the engine serves its whole API."""
        return True

    def check_request(self, request: InferenceRequest, route: ModelRoute) -> None:
        """Refuse what the model's capabilities do not include.

        Raises:
            RoundhouseError: as `check_capabilities`.
        """
        check_capabilities(request.outline_fields, route.capabilities, route.name)

    def get_body_converter(self, request: InferenceRequest) -> Callable[[bytes], bytes] | None:
        """Return None: blocking answers pass unchanged."""
        return None

    def is_told_by_events(self, error: bytes) -> bool:
        """Return False: an error before a stream begins is answered with its own status."""
        return False


class EnvelopeDialect(PassthroughDialect):
    """A `PassthroughDialect` whose errors have OpenAI's envelope and whose heartbeat is a comment."""

    heartbeat: bytes = b": ka\n\n"

    def find_usage(self, body: bytes, request: InferenceRequest) -> Usage | None:
        """Return the token counts in a blocking answer's last `usage` object; None if it has none. See
        `usage.usage_in`."""
        return usage.usage_in(body)

    def error_body(self, error: RoundhouseError, request_id: str) -> bytes:
        """Return an error of Roundhouse, with `request_id`, as the JSON of our error envelope (OpenAI's form)."""
        return errors.own_body(error, request_id)

    def engine_error_body(self, status: int, body: bytes, request_id: str) -> bytes:
        """Return an engine's error (its HTTP status and body) as the JSON of our error envelope. See `Dialect`."""
        return errors.engine_body(status, body, request_id)
