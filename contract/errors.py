"""Error answers: OpenAI's error envelope with additional fields, and all codes that may appear in it."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pydantic import BaseModel, Field


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """One error code: its meaning and its answer, which are the same wherever the code is used."""

    code: str
    group: str
    """What it is about: `requests`, `service`, `retrieval`, `tools`, `downloads` or `aicore`."""
    status: int
    """HTTP status."""
    type: str
    """OpenAI's error type."""
    meaning: str
    """One or two sentences, for the documentation."""
    next_steps: tuple[str, ...]
    """What to do, in the order to try, in the words of the API. May have placeholders (see `fill_steps`)."""
    page_steps: tuple[str, ...] | None
    """The same in the words of the page; None: as `next_steps`."""
    cli_steps: tuple[str, ...] | None
    """The same in the words of the command line; None: as `next_steps`. Empty: the message says it all."""
    retry: bool | None
    """Whether the same request may succeed later. True adds `Retry-After`, False `x-should-retry: false`, None no
    header."""


def _read_codes() -> dict[str, ErrorCode]:
    groups = tomllib.loads(Path(__file__).with_name("error_codes.toml").read_text(encoding="utf-8"))
    return {
        code: ErrorCode(
            code=code,
            group=group,
            status=entry["status"],
            type=entry.get("type", "invalid_request_error" if entry["status"] < 500 else "server_error"),
            meaning=entry["meaning"],
            next_steps=tuple(entry["next_steps"]),
            page_steps=tuple(entry["page_steps"]) if "page_steps" in entry else None,
            cli_steps=tuple(entry["cli_steps"]) if "cli_steps" in entry else None,
            retry=entry.get("retry"),
        )
        for group, entries in groups.items()
        for code, entry in entries.items()
    }


ERROR_CODES: Final = _read_codes()
"""Every error code of Roundhouse, by its name, as `error_codes.toml` says."""

_PLACEHOLDER: Final = re.compile(r"\{(\w+)(?:\|([^}]*))?\}")


def fill_steps(steps: Sequence[str], fields: Mapping[str, object]) -> list[str]:
    """Return next steps with their placeholders filled: `{model}` becomes the field `model` of `fields`.

    For a field that is missing or None, `{model|the model}` becomes `the model`; a step whose placeholder has no such
    words is left out. web/src/api/errors.ts does the same.
    """
    return [filled for step in steps if (filled := _fill_step(step, fields)) is not None]


def _fill_step(step: str, fields: Mapping[str, object]) -> str | None:
    is_complete = True

    def fill(match: re.Match[str]) -> str:
        nonlocal is_complete
        value = fields.get(match[1])
        text = match[2] if value is None else str(value)
        is_complete = is_complete and text is not None
        return text or ""

    filled = _PLACEHOLDER.sub(fill, step) if "{" in step else step
    return filled if is_complete else None


DEFAULT_RETRY_AFTER_S: Final = 5
"""Seconds in `Retry-After` if the error itself names none."""


class ErrorBody(BaseModel):
    """The value of `error` in an error answer."""

    message: str = Field(description="What went wrong, as a sentence for people.")
    type: str = Field(description="OpenAI's error type, such as `invalid_request_error`.")
    code: str = Field(description="Error code, for programs. Each code has one meaning and one HTTP status.")
    param: str | None = Field(default=None, description="Field or parameter that caused the error; null: none.")
    status: int = Field(description="HTTP status of the answer.")
    actionable: bool = Field(
        description="Whether the client or the operator can fix the cause; true if `next_steps` is not empty."
    )
    next_steps: list[str] = Field(description="What to do about the error, in the order to try.")
    model: str | None = Field(
        default=None,
        description="Name of the model that the error is about; absent: of none, or it is not known.",
        exclude_if=lambda model: model is None,
    )
    request_id: str | None = Field(
        default=None, description="Id of the request, as in the `x-request-id` header; null: none was assigned."
    )


class ErrorEnvelope(BaseModel):
    """The body of every error answer of Roundhouse."""

    error: ErrorBody = Field(description="Description of the error.")


class RoundhouseError(Exception):
    """An error that is answered to the client, with one of the error codes and a message of its own. Creating it with a
    code that is not in `ERROR_CODES` raises KeyError."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        status: int | None = None,
        model: str | None = None,
    ) -> None:
        """Create an error with one of the codes in `ERROR_CODES`. Raises KeyError for any other code.

        `param` names the field or parameter at fault. For codes that ask for a retry, `retry_after_s` is the seconds
        until then; None means 5 (`DEFAULT_RETRY_AFTER_S`). `status`: HTTP status in place of the code's own.
        `model`: name of the model that the error is about, for its next steps.
        """
        super().__init__(message)
        entry = ERROR_CODES[code]
        self.entry = entry if status is None else replace(entry, status=status)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self.model = model

    def build_envelope(self, request_id: str | None = None) -> ErrorEnvelope:
        """Return the body of the error answer. `request_id` None: the answer has no request id."""
        entry = self.entry
        fields = {"model": self.model, "param": self.param, "retry_after_s": self.retry_after_s}
        next_steps = fill_steps(entry.next_steps, fields)
        body = ErrorBody(
            message=self.message,
            type=entry.type,
            code=entry.code,
            param=self.param,
            status=entry.status,
            actionable=bool(next_steps),
            next_steps=next_steps,
            model=self.model,
            request_id=request_id,
        )
        return ErrorEnvelope(error=body)

    def json_bytes(self, request_id: str | None = None) -> bytes:
        """Return the body of the error answer as UTF-8 JSON. Never raises: what UTF-8 cannot encode becomes `?`."""
        # A message may quote half a surrogate pair, which UTF-8 cannot encode.
        return json.dumps(self.build_envelope(request_id).model_dump(), ensure_ascii=False).encode(errors="replace")

    def build_headers(self) -> dict[str, str]:
        """Return the header that tells clients whether to retry, by its name in lower case; empty if the error code
        leaves that open.

        For a code that asks for a retry, `retry-after` has `retry_after_s`, or 5 (`DEFAULT_RETRY_AFTER_S`), in whole
        seconds, at least 1. For a code that forbids one, the header is `x-should-retry: false`.
        """
        if self.entry.retry is True:
            seconds = DEFAULT_RETRY_AFTER_S if self.retry_after_s is None else self.retry_after_s
            return {"retry-after": str(max(1, round(seconds)))}
        if self.entry.retry is False:
            return {"x-should-retry": "false"}
        return {}
