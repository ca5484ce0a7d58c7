"""What the gateway reads of an inference request, and the few bytes of it that it changes. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NoReturn

from controller.schema.errors import RoundhouseError

_ASK_FOR_USAGE = b'"stream_options":{"include_usage":true},'


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """A request body, and what routing needs of it."""

    raw: bytes
    fields: dict[str, Any]
    """The decoded body."""
    model: str
    stream: bool
    wants_usage: bool
    """The client asked for the usage event of a stream."""

    def body_for(self, served_name: str, *, ask_for_usage: bool) -> bytes:
        """The bytes for an engine that calls the model `served_name`.

        The original bytes where nothing must change. `ask_for_usage` makes a stream end with its usage event, which
        nearly always means one insertion; else the body is encoded anew.
        """
        insert = ask_for_usage and self.stream and not self.wants_usage
        if self.model == served_name:
            if not insert:
                return self.raw
            if "stream_options" not in self.fields:
                brace = self.raw.index(b"{") + 1
                return self.raw[:brace] + _ASK_FOR_USAGE + self.raw[brace:]
        changed = self.fields | {"model": served_name}
        if insert:
            changed["stream_options"] = (self.fields.get("stream_options") or {}) | {"include_usage": True}
        return _encode(changed)


def parse_request(raw: bytes, *, may_stream: bool) -> InferenceRequest:
    """Decode a request body.

    Raises:
        RoundhouseError: `invalid_json`, naming the place, or `invalid_request`, naming the field.
    """
    fields = _decode(raw)
    model = fields.get("model")
    if not isinstance(model, str) or not model:
        _reject("model", "must be the name of a model", fields)
    stream = fields.get("stream")
    if not (stream is None or isinstance(stream, bool)):
        _reject("stream", "must be true or false", fields)
    options = fields.get("stream_options")
    if not (options is None or isinstance(options, dict)):
        _reject("stream_options", "must be an object", fields)
    return InferenceRequest(
        raw=raw,
        fields=fields,
        model=model,
        stream=may_stream and stream is True,
        wants_usage=bool(options and options.get("include_usage")),
    )


def _reject(name: str, rule: str, fields: dict[str, Any]) -> NoReturn:
    found = f"it is {fields[name]!r:.60}" if name in fields else "it is missing"
    raise RoundhouseError("invalid_request", f"`{name}` {rule}; {found}.", param=name)


def _decode(raw: bytes) -> dict[str, Any]:
    try:
        fields = _DECODER.decode(raw.decode())
    except UnicodeDecodeError as error:
        raise RoundhouseError("invalid_json", f"The body is not UTF-8: byte {error.start} is wrong.") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise RoundhouseError("invalid_json", f"The body is not JSON: {error.msg} at {place}.") from None
    except ValueError as error:
        raise RoundhouseError("invalid_json", f"The body is not JSON: {error}.") from None
    except RecursionError:
        raise RoundhouseError("invalid_json", "The body is nested too deeply.") from None
    if not isinstance(fields, dict):
        raise RoundhouseError("invalid_json", "The body must be a JSON object: it starts with '{'.")
    return fields


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


_DECODER = json.JSONDecoder(parse_constant=_not_json)


def _encode(fields: dict[str, Any]) -> bytes:
    try:
        # ASCII, so that lone surrogates, which JSON can write and UTF-8 cannot, survive.
        return json.dumps(fields, separators=(",", ":"), allow_nan=False).encode()
    except ValueError:
        raise RoundhouseError("invalid_request", "A number in the body is too large.") from None
