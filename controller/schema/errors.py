"""The one envelope that errors travel in: OpenAI's, extended (DESIGN.md §4), and every code that it may have."""

from __future__ import annotations

import json
from typing import Final

from pydantic import BaseModel, Field

from controller.schema.error_code import ErrorCode
from controller.schema.request_errors import REQUEST_ERRORS
from controller.schema.service_errors import SERVICE_ERRORS

__all__ = ["DEFAULT_RETRY_AFTER_S", "ERROR_CODES", "ErrorBody", "ErrorCode", "ErrorEnvelope", "RoundhouseError"]

ERROR_CODES: Final[dict[str, ErrorCode]] = {entry.code: entry for entry in (*REQUEST_ERRORS, *SERVICE_ERRORS)}
"""Every error code of Roundhouse."""

DEFAULT_RETRY_AFTER_S: Final = 5
"""Seconds named in `Retry-After` when nothing better is known."""


class ErrorBody(BaseModel):
    """The inner object of the envelope."""

    message: str = Field(description="What happened, for people.")
    type: str = Field(description="OpenAI's error type.")
    code: str = Field(description="What happened, for programs.")
    param: str | None = Field(default=None, description="The field or parameter at fault.")
    status: int = Field(description="The HTTP status.")
    actionable: bool = Field(description="Whether something can be done about it.")
    next_steps: list[str] = Field(description="What to do, the first thing first.")
    request_id: str | None = Field(default=None, description="As in the header x-request-id.")


class ErrorEnvelope(BaseModel):
    """What every error answer of Roundhouse holds."""

    error: ErrorBody = Field(description="The error.")


class RoundhouseError(Exception):
    """An error that a client may see: a code of the table, a message of its own, perhaps the field at fault."""

    def __init__(
        self, code: str, message: str, *, param: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.entry = ERROR_CODES[code]
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s

    def build_envelope(self, request_id: str | None = None) -> ErrorEnvelope:
        """The envelope for this error."""
        entry = self.entry
        body = ErrorBody(
            message=self.message,
            type=entry.type,
            code=entry.code,
            param=self.param,
            status=entry.status,
            actionable=bool(entry.next_steps),
            next_steps=list(entry.next_steps),
            request_id=request_id,
        )
        return ErrorEnvelope(error=body)

    def json_bytes(self, request_id: str | None = None) -> bytes:
        """The envelope as UTF-8 JSON."""
        # A message may quote half a surrogate pair, which JSON can write and UTF-8 cannot.
        return json.dumps(self.build_envelope(request_id).model_dump(), ensure_ascii=False).encode(errors="replace")

    def build_headers(self) -> dict[str, str]:
        """`Retry-After` or `x-should-retry`, as the table says."""
        if self.entry.retry is True:
            seconds = DEFAULT_RETRY_AFTER_S if self.retry_after_s is None else self.retry_after_s
            return {"retry-after": str(max(1, round(seconds)))}
        if self.entry.retry is False:
            return {"x-should-retry": "false"}
        return {}
