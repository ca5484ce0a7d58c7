"""Errors in each API family's form: those of Roundhouse and those of engines. Pure.

Our envelope is OpenAI's form, `{"error": {"message", "type", "code", "param"}}`, with further fields
(`contract/errors.py`). Anthropic's form is `{"type": "error", "error": {...}}`.

Clients recognise a prompt that exceeds the context by the error's words alone. OpenAI's clients look for "maximum
context length is N tokens" (litellm), for the code, also in the message (LangChain), and for "exceeds the context
window" (LangChain, in streams). Anthropic's look for "prompt is too long: M tokens > N maximum".
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from contract.errors import ERROR_CODES, RoundhouseError, fill_steps
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.hiding import hide_addresses, hide_in_json
from gateway.protocols.common.json_bytes import json_bytes

OVERFLOW_CODE: Final = "context_length_exceeded"
OVERFLOW_STATUS: Final = 400
"""HTTP status in both families. Anthropic's 413 is for bodies with too many bytes."""
CACHE_EXHAUSTED: Final = "Context size has been exceeded."
"""llama-server's message to all running requests once they have filled its KV cache together. It is no overflow: each
of them may fit when sent again."""
_LLAMA_SERVERS_TYPE: Final = "exceed_context_size_error"


@dataclass(frozen=True, slots=True)
class ContextOverflow:
    """What an engine reported about a prompt that exceeds the model's context. `limit` and `prompt_tokens` are None
    where it reported no such number. Writes the error message for clients of each API family."""

    limit: int | None = None
    """Length of the context in tokens; None: not reported."""
    prompt_tokens: int | None = None
    """Tokens of the prompt; None: not reported."""
    is_at_least: bool = False
    """Whether the prompt may have more than `prompt_tokens`, because the count was broken off."""
    output_tokens: int | None = None
    """Tokens of the answer that the request asked for, if prompt and answer together exceed the limit; None: the prompt
    alone exceeds it."""
    engine_message: str = ""
    """The engine's message, shown where a number is missing."""

    def describe_for_openai(self) -> str:
        """Return the error message in the words that OpenAI's clients look for, with the engine's own message in the
        place of numbers that are not reported."""
        if self.limit is None or self.prompt_tokens is None:
            return self._describe_without_numbers(f"The prompt exceeds the context window ({OVERFLOW_CODE})")
        limit_text = f"This model's maximum context length is {self.limit} tokens. However,"
        if self.output_tokens is not None:
            sum_tokens = self.prompt_tokens + self.output_tokens
            return (
                f"{limit_text} you requested {sum_tokens} tokens ({self.prompt_tokens} in the messages, "
                f"{self.output_tokens} in the completion). Please reduce the length of the messages or completion; "
                f"their sum exceeds the context window ({OVERFLOW_CODE})."
            )
        at_least = "at least " if self.is_at_least else ""
        return (
            f"{limit_text} your messages resulted in {at_least}{self.prompt_tokens} tokens. Please reduce the length "
            f"of the messages; the prompt exceeds the context window ({OVERFLOW_CODE})."
        )

    def describe_for_anthropic(self) -> str:
        """Return the error message in the words that Anthropic's clients look for, with the engine's own message in the
        place of numbers that are not reported. It does not say `is_at_least`."""
        if self.limit is None or self.prompt_tokens is None:
            return self._describe_without_numbers("prompt is too long")
        if self.output_tokens is not None:
            return (
                f"input length and `max_tokens` exceed context limit: {self.prompt_tokens} + {self.output_tokens} > "
                f"{self.limit}, decrease input length or `max_tokens` and try again"
            )
        return f"prompt is too long: {self.prompt_tokens} tokens > {self.limit} maximum"

    def _describe_without_numbers(self, words: str) -> str:
        """Return `words` followed by the engine's message, or that message alone if it has these words."""
        if words in self.engine_message:
            return self.engine_message
        return f"{words}: {self.engine_message}" if self.engine_message else f"{words}."


@dataclass(frozen=True, slots=True)
class _Wording:
    """A pattern of engines' messages. Its groups are `limit` and `prompt`, and where the message has them `output`,
    `least`."""

    pattern: re.Pattern[str]
    excess: int = 0
    """Tokens by which the prompt exceeds the group `prompt` at least."""


_NUMBER: Final = r"\d{1,12}"
_LIMIT: Final = r"maximum context length is (?P<limit>\d+) tokens"
_WORDINGS: Final = tuple(
    _Wording(re.compile(pattern.replace(r"\d+", _NUMBER)), excess)
    for pattern, excess in (
        # llama-server: for a prompt; for a text to embed, which must fit one batch.
        (r"request \((?P<prompt>\d+) tokens\) exceeds the available context size \((?P<limit>\d+) tokens\)", 0),
        (r"input \((?P<prompt>\d+) tokens\) is too large to process.*batch size: (?P<limit>\d+)\)", 0),
        # OpenAI, and ContextOverflow.describe_for_openai.
        (_LIMIT + r"\. However, your messages resulted in (?P<least>at least )?(?P<prompt>\d+) tokens", 0),
        (
            _LIMIT + r"[.,] [Hh]owever,? you requested \d+ tokens \((?P<prompt>\d+) in (?:the messages|your prompt)"
            r"[,;] (?P<output>\d+) (?:in|for) the completion\)",
            0,
        ),
        # vLLM: for a prompt that was tokenized, for one that was not, and the messages of earlier releases.
        (_LIMIT + r"\. However, your prompt contains (?P<least>at least )?(?P<prompt>\d+) input tokens", 0),
        (
            _LIMIT + r"\. However, your prompt contains \d+ characters "
            r"\(more than \d+ characters, which is the (?P<least>upper bound) for (?P<prompt>\d+) input tokens",
            1,
        ),
        (_LIMIT + r"\. However, your request has (?P<prompt>\d+) input tokens", 0),
        (
            _LIMIT + r"\. However, you requested (?P<output>\d+) output tokens "
            r"and your prompt contains (?P<least>at least )?(?P<prompt>\d+) input tokens",
            0,
        ),
        (_LIMIT + r" and your request has (?P<prompt>\d+) input tokens \((?P<output>\d+) > ", 0),
        (
            r"prompt \(length (?P<prompt>\d+)\) (?:plus the number of requested output tokens \(at least 1\) )?is "
            r"longer than the maximum model length of (?P<limit>\d+)",
            0,
        ),
        (r"Input length \((?P<prompt>\d+)\) exceeds model's maximum context length \((?P<limit>\d+)\)", 0),
        # Roundhouse's workers, and LiteRT-LM in one of them.
        (r"The prompt has (?P<prompt>\d+) tokens, more than fit the context of (?P<limit>\d+)\.", 0),
        (r"maximum number of tokens allowed: (?P<prompt>\d+) >=? (?P<limit>\d+)", 0),
        # Anthropic.
        (r"prompt is too long: (?P<prompt>\d+) tokens > (?P<limit>\d+) maximum", 0),
        (r"exceed context limit: (?P<prompt>\d+) \+ (?P<output>\d+) > (?P<limit>\d+)", 0),
    )
)


def find_overflow(error: Mapping[str, Any]) -> ContextOverflow | None:
    """Return what an engine's decoded error object reports about a prompt that is too long; None if it is another
    error. Recognises the messages of known engines, OpenAI's code and llama-server's type; without a known message the
    numbers may be None."""
    message = error.get("message")
    message = message if isinstance(message, str) else ""
    for wording in _WORDINGS:
        match = wording.pattern.search(message)
        if match is not None:
            groups = match.groupdict()
            return ContextOverflow(
                limit=int(groups["limit"]),
                prompt_tokens=int(groups["prompt"]) + wording.excess,
                is_at_least=groups.get("least") is not None,
                output_tokens=int(groups.get("output") or 0) or None,
                engine_message=message,
            )
    if error.get("code") != OVERFLOW_CODE and error.get("type") != _LLAMA_SERVERS_TYPE:
        return None
    return ContextOverflow(
        _count_tokens(error.get("n_ctx")), _count_tokens(error.get("n_prompt_tokens")), engine_message=message
    )


def _count_tokens(value: Any) -> int | None:
    return value if isinstance(value, int) and value >= 0 and not isinstance(value, bool) else None


ENGINE_ERROR: Final = ERROR_CODES["engine_error"]

_ANTHROPIC_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_STATUS_OF_TYPE: Final = {kind: status for status, kind in reversed(_ANTHROPIC_TYPES.items())} | {
    "invalid_request_error": 400
}
_TOO_DEEP_MESSAGE: Final = "The engine answered with JSON that is nested too deeply."
_TOO_DEEP: Final = b'{"error":{"message":"%b"}}' % _TOO_DEEP_MESSAGE.encode()
_OWN_FIELDS: Final = {"message": str, "type": str, "code": str, "status": int, "actionable": bool, "next_steps": list}
_FASTAPI_BODY: Final = "body."
_EXHAUSTED: Final = ERROR_CODES["kv_cache_exhausted"]
_EXHAUSTED_TEXT: Final = CACHE_EXHAUSTED.encode()
_CLIENTS_FAULT: Final = re.compile(r"Failed to parse (?P<field>messages|tools)\b|JSON schema error at ")
"""llama-server's messages, with status 500, about values that it cannot read."""
_INVALID: Final = ERROR_CODES["invalid_request"]
_MESSAGE_CHARACTERS: Final = 1000
_MOST_BRACKETS: Final = 400
_MOST_STEPS: Final = 10
_UNSEEN: Final = re.compile(r"(?is)<(script|style|head)\b.*?</\1>|<[^>]*>")


def client_status(engine_status: int) -> int:
    """Return the HTTP status that the client gets for an engine's status: 2xx, 4xx and 5xx as they are, and that of
    `engine_error` for any other. Redirects are not followed, because that would send the prompt elsewhere."""
    return engine_status if engine_status >= 400 or 200 <= engine_status < 300 else ENGINE_ERROR.status


def own_body(error: RoundhouseError, request_id: str) -> bytes:
    """Return an error of Roundhouse, with `request_id`, as the JSON of our error envelope, which is OpenAI's form."""
    return encode_json(error.build_envelope(request_id).model_dump())


def engine_body(status: int, body: bytes, request_id: str | None) -> bytes:
    """Return an engine's error answer (its HTTP status and body) as the JSON of our error envelope (`complete_error`).

    A body that is this envelope already passes unchanged if it states the same status, holds no network address and
    reports no context overflow. A body that is no JSON object, or has so many brackets that it might be nested too
    deeply, is taken as text: without HTML tags and cut to 1000 characters, it becomes the message.
    """
    fields = _decode_shallow(body)
    if (
        is_envelope(fields)
        and fields["error"]["status"] == client_status(status)
        and not tells_address(fields["error"])
        and find_overflow(fields["error"]) is None
    ):
        return body
    return encode_json(complete_error(status, fields if isinstance(fields, dict) else {}, body, request_id))


def answer_status(status: int, body: bytes) -> int:
    """Return the HTTP status to send to a client when an engine answered with this status and error body: that of a
    context overflow, an exhausted KV cache or a value that cannot be read if the body reports one, else
    `client_status`."""
    decoded = _decode_shallow(body)
    fields = decoded if isinstance(decoded, dict) else {}  # as `complete_error` reads a text
    if _find_overflow(fields, body) is not None:
        return OVERFLOW_STATUS
    if is_exhausted(fields.get("error")):
        return _EXHAUSTED.status
    return client_status(status) if _find_clients_fault(status, fields, body) is None else _INVALID.status


def complete_error(status: int, fields: Fields, body: bytes, request_id: str | None) -> Fields:
    """Return an engine's error with every field of our error envelope, as `{"error": ...}`.

    `fields` is the decoded `body`; empty: it is no JSON object, and the message is taken from `body`. Further fields of
    the engine's error stay if it has a message, and so do its code if that is a string that is not empty, and its
    `next_steps` if they are texts; network addresses are replaced. A context overflow gets the code, type and message
    that clients look for. A KV cache that all running requests have filled together gets a code of ours
    (`kv_cache_exhausted`), and a value that llama-server cannot read `invalid_request`. These set the error's `status`
    too; otherwise it is `client_status`.
    """
    overflow = _find_overflow(fields, body)
    error = fields.get("error")
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        error = _hide_in_error(error)
    else:
        message = _message(fields, body) or f"The engine answered with status {status} and no message."
        error = {"message": message}
    if overflow is not None:
        status = OVERFLOW_STATUS
        error = error | {
            "message": overflow.describe_for_openai(),
            "type": "invalid_request_error",
            "code": OVERFLOW_CODE,
        }
    elif is_exhausted(error):
        status = _EXHAUSTED.status
        # Not the engine's message: clients would take it for a prompt that is too long.
        error = error | {"message": _EXHAUSTED.meaning, "type": _EXHAUSTED.type, "code": _EXHAUSTED.code}
    elif (fault := _find_clients_fault(status, fields, body)) is not None:
        status = _INVALID.status
        error = error | {"type": _INVALID.type, "code": _INVALID.code, "param": fault["field"]}
    code = error.get("code")
    entry = ERROR_CODES.get(code, ENGINE_ERROR) if isinstance(code, str) else ENGINE_ERROR
    is_known = overflow is not None or entry is _EXHAUSTED
    next_steps = (not is_known and _find_steps(error)) or fill_steps(entry.next_steps, {})
    sent_status = client_status(status)
    kind = error.get("type")
    own_fields = {
        "type": kind if isinstance(kind, str) else ("invalid_request_error" if sent_status < 500 else "server_error"),
        "code": code if isinstance(code, str) and code else entry.code,
        "param": _place(error.get("param")),
        "status": sent_status,
        "actionable": bool(next_steps),
        "next_steps": next_steps,
        "request_id": request_id,
    }
    return {"error": error | own_fields}


def _find_steps(error: Fields) -> list[str]:
    """Return the next steps that an engine's error names, as a phone's server does; empty: none, or no list of
    texts."""
    steps = error.get("next_steps")
    if not isinstance(steps, list) or not all(isinstance(each, str) for each in steps):
        return []
    return [each[:_MESSAGE_CHARACTERS] for each in steps[:_MOST_STEPS] if each]


def retry_header(status: int, body: bytes) -> dict[str, str]:
    """Return the header that says whether to retry after an engine's error that had none: by our code, if the error
    has one, else `retry-after` with status 425 (Too Early). Empty: nobody knows. `body`: of `engine_body` or
    `anthropic_body`."""
    fields = _decode_shallow(body)
    error = fields.get("error") if isinstance(fields, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, str) and code in ERROR_CODES and ERROR_CODES[code].status == status:
        return RoundhouseError(code, "").build_headers()
    return RoundhouseError("AICORE_DOWNLOADING", "").build_headers() if status == 425 else {}


def reports_exhausted(body: bytes) -> bool:
    """Whether an engine's error body reports an exhausted KV cache (`is_exhausted`). It is decoded only if it has that
    message anywhere: an error may quote the client's text, and the model's."""
    fields = _decode_shallow(body) if _EXHAUSTED_TEXT in body else None
    return isinstance(fields, dict) and is_exhausted(fields.get("error"))


def is_exhausted(error: Any) -> bool:
    """Whether a decoded error object reports a KV cache that all running requests have filled together."""
    return isinstance(error, dict) and error.get("message") == CACHE_EXHAUSTED


def tells_address(error: Fields) -> bool:
    """Whether an error object holds a network address (see `hiding`). The `next_steps` that belong to one of our
    codes do not count. True for an object that is nested too deeply to be searched."""
    code, next_steps = error.get("code"), error.get("next_steps")
    entry = ERROR_CODES.get(code) if isinstance(code, str) else None
    if entry is not None and next_steps == list(entry.next_steps):
        error = error | {"next_steps": None}
    try:
        return bool(hide_in_json(error) != error)
    except RecursionError:
        return True


def _hide_in_error(error: Fields) -> Fields:
    try:
        return dict(hide_in_json(error))
    except RecursionError:
        return {"message": _TOO_DEEP_MESSAGE}


def _place(param: Any) -> Any:
    """Return the place of an error in our form. vLLM names it as FastAPI does, with the class that it tried:
    `body.messages.0.UserMessage.role`."""
    if not (isinstance(param, str) and param.startswith(_FASTAPI_BODY)):
        return param
    return re.sub(r"\.(\d+)(?![^.])", r"[\1]", re.sub(r"\.[A-Z]\w*", "", param.removeprefix(_FASTAPI_BODY)))


def anthropic_body(envelope: bytes, request_id: str | None) -> bytes:
    """Return the JSON of `own_body` or `engine_body` in Anthropic's form, with the further fields of our envelope.

    `request_id` None: the one in the envelope stays. `envelope` must have every field of our error envelope.
    """
    error: Fields = json.loads(envelope)["error"]
    own_request_id = error.pop("request_id", None)
    status = error["status"]
    if error.get("code") == OVERFLOW_CODE and (overflow := find_overflow(error)) is not None:
        error["message"] = overflow.describe_for_anthropic()
    kind = _ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    if status == 501:
        kind = "invalid_request_error"  # the API is not offered: clients must not retry, as they do on api_error
    ordered_fields = {"type": kind, "message": error["message"]} | {k: v for k, v in error.items() if k != "type"}
    return encode_json({"type": "error", "error": ordered_fields, "request_id": request_id or own_request_id})


def is_anthropic(fields: Any) -> bool:
    """Whether a decoded body is an error in Anthropic's form."""
    error = fields.get("error") if isinstance(fields, dict) and fields.get("type") == "error" else None
    return isinstance(error, dict) and isinstance(error.get("type"), str) and isinstance(error.get("message"), str)


def is_envelope(fields: Any) -> bool:
    """Whether a decoded body is an error in our envelope: `error` has `message`, `type`, `code`, `status`, `actionable`
    and `next_steps`, each of the right type. `param` and `request_id` are not looked at."""
    error = fields.get("error") if isinstance(fields, dict) else None
    return isinstance(error, dict) and all(type(error.get(name)) is kind for name, kind in _OWN_FIELDS.items())


def status_of(error: Any) -> int:
    """Return the HTTP status, 400 to 599, that a decoded error object states in `status` or `code` as a number, or by
    Anthropic's `type`; 500 if it states none or is no object."""
    if not isinstance(error, Mapping):
        return 500
    for name in ("status", "code"):
        value = error.get(name)
        if isinstance(value, int) and 400 <= value <= 599:
            return value
    kind = error.get("type")
    return _STATUS_OF_TYPE.get(kind, 500) if isinstance(kind, str) else 500


def one_line(body: bytes) -> bytes:
    """Return JSON without line ends, which would split an event's data. In JSON, line ends are white space between
    tokens."""
    return body.replace(b"\r", b" ").replace(b"\n", b" ") if b"\n" in body or b"\r" in body else body


def as_event(body: bytes) -> bytes:
    """Return the JSON of an error as a server-sent event without a name (`data: ...`)."""
    return b"data: " + one_line(body) + b"\n\n"


def as_text(error: Any) -> str:
    """Return a decoded error as text: a string as it is, any other value as JSON."""
    return error if isinstance(error, str) else encode_json(error).decode()


def decode_json(body: bytes | str) -> Any:
    """Return decoded JSON; None if `body` is no JSON, or is nested too deeply for Python's decoder, or is `null`."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def encode_json(value: Any) -> bytes:
    """Return a value as JSON; `{"error": {"message": ...}}` if the value is nested too deeply, which raises nothing."""
    try:
        return json_bytes(value)
    except RecursionError:
        return _TOO_DEEP


def _decode_shallow(body: bytes) -> Any:
    """Return decoded JSON; None if `body` is no JSON, or might be nested too deeply to be encoded or decoded again
    further up the stack. The caller then treats it as text."""
    return decode_json(body) if body.count(b"{") + body.count(b"[") <= _MOST_BRACKETS else None


def _find_overflow(fields: Fields, body: bytes) -> ContextOverflow | None:
    error = fields.get("error")
    if isinstance(error, dict):
        return find_overflow(_hide_in_error(error))
    return find_overflow({"code": fields.get("code"), "message": _message(fields, body)})


def _find_clients_fault(status: int, fields: Fields, body: bytes) -> re.Match[str] | None:
    """Return the match of an engine's error that says with status 500 that the request cannot be read; None: it says
    something else."""
    if status != 500:
        return None
    error = fields.get("error")
    text = error.get("message") if isinstance(error, dict) else _message(fields, body)
    return _CLIENTS_FAULT.search(text) if isinstance(text, str) else None


def _message(fields: Fields, body: bytes) -> str:
    for name in ("message", "error", "detail"):
        if value := fields.get(name):
            return hide_addresses(as_text(value))[:_MESSAGE_CHARACTERS]
    text = _UNSEEN.sub(" ", body[: 16 * _MESSAGE_CHARACTERS].decode(errors="replace"))
    return hide_addresses(" ".join(text.split()))[:_MESSAGE_CHARACTERS]
