"""What the gateway reads of an inference request: its body, and the model that it names. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NoReturn
from urllib.parse import parse_qsl, urlencode

from contract.errors import RoundhouseError
from gateway.protocols.common.conversation import Assistant, Prompt
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.common.large_body import LargeBody

_OURS: Final = ("model", "autoload", "replica")
"""Parameters of a query that are for the gateway."""
CONTENT_HOLDERS: Final = ("messages", "input")
"""Fields of requests that list messages or items."""
PART_LISTS: Final = ("content", "output")
"""Fields that list content parts: of messages and tool results, and of results in responses."""
BodyKind = Literal["object", "any", "none"]
"""JSON that a request must hold: an object, any value, or none at all."""


@dataclass(slots=True)
class InferenceRequest:
    """The decoded body of one request and what routing needs of it. After it is made, `target` and what dialects and
    hooks keep (`prompt`, `repeated_turn`, `continues_text`, `state`) may be set; change nothing else (frozen would cost
    a microsecond).

    For a small body, `outline` and `outline_fields` are the body itself. For a large one, they lack the inside of long
    strings; they suffice to inspect the request and for changes that move strings as a whole. `raw` and `fields` are
    always complete; for a large body they cost a copy and its decoding, and work only until its engine begins to
    answer.
    """

    outline: bytes
    outline_fields: dict[str, Any]
    """The decoded outline; empty if the body is not an object."""
    model: str
    stream: bool
    wants_usage: bool
    """Whether the client asked for the usage event of a stream (`stream_options.include_usage`)."""
    target: str = ""
    """Path and query for the engine."""
    prompt: Prompt | None = None
    """The request in no family's form; None until a translating dialect has read it."""
    repeated_turn: Assistant | None = None
    """Assistant turn that the answer continues and the engine repeats first; None: nothing is repeated."""
    continues_text: bool = False
    """Whether the answer goes on with the text of the last turn, which the engine may take for thoughts."""
    state: Any = None
    """Data that a dialect or a hook keeps with the request."""
    id: str = ""
    """Request id, which the client gets as `X-Request-Id`. Answers without an id of the engine derive theirs from
    it."""
    received_at: float = 0.0
    """Time of arrival, in Unix seconds."""
    names_model: bool = True
    """Whether the body names the model. If not, the query does, or only one model is possible."""
    large_body: LargeBody | None = None
    """The body that `outline` is the outline of; None: the body is small."""
    _whole_fields: dict[str, Any] | None = None

    @property
    def raw(self) -> bytes:
        """The whole body as JSON. Of a large body, each use makes a new copy of it as the client sent it, without what
        was changed in `outline`. Raises RuntimeError once a large body is freed, as its engine begins to answer."""
        return self.outline if self.large_body is None else self.large_body.join()

    @property
    def fields(self) -> dict[str, Any]:
        """The whole body, decoded; empty if it is not an object. A large body is decoded at the first use.

        Raises:
            RoundhouseError: `invalid_json`: a string of a large body is not valid.
            RuntimeError: the large body was freed before the first use.
        """
        if self.large_body is None:
            return self.outline_fields
        if self.large_body.is_outline:
            self.large_body.note_whole()
            return self.outline_fields
        if self._whole_fields is None:
            value = _decode(self.large_body.join())
            self._whole_fields = value if isinstance(value, dict) else {}
        return self._whole_fields

    def whole_where_any(self, names: Collection[str]) -> dict[str, Any]:
        """Return `fields` if the request has a field of one of these names, for callers that interpret its text; else
        `outline_fields`. Raises as `fields`."""
        return self.outline_fields if self.outline_fields.keys().isdisjoint(names) else self.fields

    @property
    def size(self) -> int:
        """Bytes of the whole body."""
        return len(self.outline) if self.large_body is None else self.large_body.size

    @property
    def text_bytes(self) -> int:
        """Bytes of the whole body. Long strings of base64 in a large body do not count; in a small one they do."""
        return len(self.outline) if self.large_body is None else self.large_body.text_bytes

    def fill(self, encoded: bytes) -> bytes | list[bytes | memoryview]:
        """Return JSON that was made of the outline or of the whole body with the parts put back that the outline lacks;
        as a list of pieces if the body is large. Raises RuntimeError if a part is needed after the body was freed."""
        return encoded if self.large_body is None else self.large_body.fill(encoded)

    def with_fields(self, fields: dict[str, Any]) -> InferenceRequest:
        """Return a copy of the request whose body is `fields`, not a large one.

        `prompt`, `repeated_turn` and `continues_text` of the old body are dropped; `model`, `stream` and `state` stay.
        Raises RecursionError if `fields` are nested too deeply.
        """
        return replace(
            self,
            outline=json_bytes(fields),
            outline_fields=fields,
            prompt=None,
            repeated_turn=None,
            continues_text=False,
            large_body=None,
            _whole_fields=None,
        )


def parse_request(body: bytes | LargeBody, *, may_stream: bool, usual_model: str | None = None) -> InferenceRequest:
    """Decode a request whose body names its model.

    `usual_model`: model of a body that names none; the body then gets the field `model` and is encoded again, a large
    one as a small one. None: a body that names no model is refused. `may_stream` False: `stream` and `stream_options`
    are neither read nor checked.

    Raises:
        RoundhouseError: `invalid_json`: the body is no JSON object in UTF-8; the message has the position.
            `invalid_request`: `model`, `stream` or `stream_options` is wrong (it is the `param`), or a number is too
            large for a float.
    """
    raw, large_body = split_body(body)
    fields = _decode(raw, large_body)
    if not isinstance(fields, dict):
        raise RoundhouseError("invalid_json", "The body must be a JSON object: it starts with '{'.")
    model = fields.get("model")
    if usual_model is not None and not model:
        return parse_request(_name_model(body, usual_model), may_stream=may_stream)
    if not isinstance(model, str) or not model:
        _reject("model", "must be the name of a model", fields)
    if not may_stream:
        return InferenceRequest(raw, fields, model, stream=False, wants_usage=False, large_body=large_body)
    stream = fields.get("stream")
    if not (stream is None or isinstance(stream, bool)):
        _reject("stream", "must be true or false", fields)
    options = fields.get("stream_options")
    if not (options is None or isinstance(options, dict)):
        _reject("stream_options", "must be an object", fields)
    wants_usage = bool(options and options.get("include_usage"))
    return InferenceRequest(raw, fields, model, stream is True, wants_usage, large_body=large_body)


def parse_native(
    raw_body: bytes | LargeBody, query: bytes, path: str, sole_model: str | None, *, body: BodyKind
) -> InferenceRequest:
    """Decode a request to one of llama.cpp's own routes. The query or the body may name the model, or neither.

    `sole_model` serves a request that names none; None: several models have the route, or no model has. `body` says
    what JSON the route needs. For `any` and `none` the body may be empty, but a body that came is decoded and must be
    JSON. The result's `target` is `path` and `query` without `model`, `autoload` and `replica`, which are for the
    gateway.

    Raises:
        RoundhouseError: `invalid_json`: the body is not the JSON that the route needs. `invalid_request`: no model is
            named and there is no `sole_model`; or query and body name different models, of which the engine would see
            only one; or a number is too large.
    """
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    names = {value for name, value in pairs if name == "model" and value}
    other_query = urlencode([pair for pair in pairs if pair[0] not in _OURS])
    raw, large_body = split_body(raw_body)
    json_value = _decode(raw, large_body) if raw or body == "object" else {}
    if body == "object" and not isinstance(json_value, dict):
        raise RoundhouseError("invalid_json", "The body must be a JSON object: it starts with '{'.")
    fields: dict[str, Any] = json_value if isinstance(json_value, dict) else {}
    body_model = fields.get("model")
    names_model = False
    if isinstance(body_model, str) and body_model:
        names_model = True
        names.add(body_model)
    if len(names) > 1:
        message = f"The request names more than one model: {', '.join(repr(name) for name in sorted(names)):.200}."
        raise RoundhouseError("invalid_request", message, param="model")
    model = names.pop() if names else sole_model
    if not model:
        message = "The request names no model, and several have this route: add `?model=NAME`."
        raise RoundhouseError("invalid_request", message, param="model")
    stream = fields.get("stream") is True
    target = f"{path}?{other_query}" if other_query else path
    return InferenceRequest(
        raw,
        fields,
        model,
        stream,
        wants_usage=False,
        target=target,
        names_model=names_model,
        large_body=large_body,
    )


def find_part_types(fields: Mapping[str, Any]) -> Collection[str]:
    """Return the types of the content parts of a request's messages or items, those inside results of tools included,
    whatever the parts' form. Empty where all content is text, and where the first message or item is no object.

    Runs for every request; costs one look at each message and part.
    """
    types: set[str] = set()
    for name in CONTENT_HOLDERS:
        items = fields.get(name)
        if type(items) is list and items and type(items[0]) is dict:  # else texts or tokens to embed
            for item in items:
                if type(item) is dict:
                    for inner_name in PART_LISTS:
                        parts = item.get(inner_name)
                        if type(parts) is list:
                            _add_types(types, parts)
    return types


def _add_types(types: set[str], parts: Sequence[Any]) -> None:
    for part in parts:
        kind = part.get("type") if type(part) is dict else None
        if type(kind) is str:
            types.add(kind)
            if kind == "tool_result" and type(part.get("content")) is list:
                _add_types(types, part["content"])


def split_body(body: bytes | LargeBody) -> tuple[bytes, LargeBody | None]:
    """Return the JSON to decode, and the large body that it is the outline of; None for a small body. A large body must
    be finished (`LargeBody.finish`)."""
    return (body.outline, body) if isinstance(body, LargeBody) else (body, None)


def parse_object(raw: bytes) -> dict[str, Any]:
    """Return the fields of a body that names no model; an empty dict if the body is empty. Raises RoundhouseError as
    `parse_request`."""
    fields = _decode(raw) if raw else {}
    if not isinstance(fields, dict):
        raise RoundhouseError("invalid_json", "The body must be a JSON object: it starts with '{'.")
    return fields


def _name_model(body: bytes | LargeBody, model: str) -> bytes:
    """The body, an object, with the name of a model."""
    fields = _decode(body.join() if isinstance(body, LargeBody) else body)
    return json_bytes({**fields, "model": model})


def _reject(name: str, rule: str, fields: dict[str, Any]) -> NoReturn:
    description = f"it is {fields[name]!r:.60}" if name in fields else "it is missing"
    raise RoundhouseError("invalid_request", f"`{name}` {rule}; {description}.", param=name)


def _decode(raw: bytes, large_body: LargeBody | None = None) -> Any:
    """Return decoded JSON. `large_body` is the body that `raw` is the outline of; error messages name positions in
    it."""
    try:
        text = raw.decode()
        if raw[:1] == b"{":  # nearly always; raw_decode skips two searches for white space
            fields, end = _DECODER.raw_decode(text)
            if end == len(text):
                return fields
        fields = _DECODER.decode(text)
    except UnicodeDecodeError as no_text:
        start = no_text.start if large_body is None else large_body.place_in_body(no_text.start)
        raise RoundhouseError("invalid_json", f"The body is not UTF-8: byte {start} is wrong.") from None
    except json.JSONDecodeError as no_json:
        place = f"line {no_json.lineno} column {no_json.colno}"
        if large_body is not None:
            place = f"byte {large_body.place_in_body(len(no_json.doc[: no_json.pos].encode()))}"
        raise RoundhouseError("invalid_json", f"The body is not JSON: {no_json.msg} at {place}.") from None
    except ValueError as wrong_value:
        raise RoundhouseError("invalid_json", f"The body is not JSON: {wrong_value}.") from None
    except RecursionError:
        raise RoundhouseError("invalid_json", "The body is nested too deeply.") from None
    return fields


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _finite(number: str) -> float:
    value = float(number)
    if value - value != 0:  # infinite, which JSON cannot express
        raise RoundhouseError("invalid_request", f"A number in the body is too large: {number:.40}.")
    return value


_DECODER = json.JSONDecoder(parse_constant=_not_json, parse_float=_finite)
