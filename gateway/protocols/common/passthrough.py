"""What an engine speaks itself: the request goes as it is, and so does the answer. Pure."""

from __future__ import annotations

from collections.abc import Callable

from controller.schema.errors import RoundhouseError
from controller.schema.routing import ModelRoute
from gateway.protocols.common import errors, usage
from gateway.protocols.common.capabilities import check_capabilities
from gateway.protocols.common.dialect import Usage
from gateway.protocols.common.request import InferenceRequest


class PassthroughDialect:
    """Their part of a `Dialect`."""

    id_header: bytes | None = None

    may_flow: bool = False

    def can_serve(self, request: InferenceRequest) -> bool:
        """See Dialect."""
        return True

    def check_request(self, request: InferenceRequest, route: ModelRoute) -> None:
        """See Dialect."""
        check_capabilities(request.outline_fields, route.capabilities, route.name)

    def get_body_converter(self, request: InferenceRequest) -> Callable[[bytes], bytes] | None:
        """See Dialect."""
        return None

    def is_told_by_events(self, error: bytes) -> bool:
        """See Dialect."""
        return False


class EnvelopeDialect(PassthroughDialect):
    """A `PassthroughDialect` whose errors have OpenAI's envelope and whose silence is broken by a comment."""

    heartbeat: bytes = b": ka\n\n"

    def find_usage(self, body: bytes) -> Usage | None:
        """See Dialect."""
        return usage.usage_in(body)

    def error_body(self, error: RoundhouseError, request_id: str) -> bytes:
        """See Dialect."""
        return errors.own_body(error, request_id)

    def engine_error_body(self, status: int, body: bytes, request_id: str) -> bytes:
        """See Dialect."""
        return errors.engine_body(status, body, request_id)
