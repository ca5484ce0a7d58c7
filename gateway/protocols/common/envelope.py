"""What the families share whose errors have OpenAI's envelope and whose silence is broken by a comment."""

from __future__ import annotations

from controller.schema.errors import RoundhouseError
from gateway.protocols.common import errors, usage
from gateway.protocols.common.dialect import Usage
from gateway.protocols.common.passthrough import PassthroughDialect


class EnvelopeDialect(PassthroughDialect):
    """Their part of a `Dialect`."""

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
