"""Adapts request bodies to engines, changing as few bytes as possible. Pure.

Routing decodes every body anyway, but encoding it again would cost as much. So a missing field is inserted after the
first brace, and a present one is replaced in place. For a large body, this happens to its outline.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final

from controller.schema.routing import ModelRoute
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.common.known_fields import drop_foreign_fields
from gateway.protocols.common.request import InferenceRequest

_STREAM: Final = re.compile(rb'"stream"\s*:\s*(?:false|null)')
_MODEL: Final = re.compile(rb'"model"\s*:\s*"[^"\\]*"')
_ESCAPED_LETTER: Final = b"\\u00"
"""Start of an escape with which a key may be written, so that a search for the key's bytes does not find it."""


def without_foreign_fields(
    request: InferenceRequest, known_fields: Collection[str], route: ModelRoute
) -> InferenceRequest:
    """Return the request without fields that the model's engine must not get: only a model that is served elsewhere
    loses any (see `drop_foreign_fields`, also for `known_fields`). The same object if all of them pass; otherwise a
    copy, and `request` stays as it is. Of a large body, only the copy's outline lacks the fields: its `raw` and
    `fields` are still those of the whole body."""
    fields = drop_foreign_fields(request.outline_fields, known_fields, route)
    if fields is request.outline_fields:
        return request
    return replace(request, outline=json_bytes(fields), outline_fields=fields)


def as_named(request: InferenceRequest, served_name: str) -> bytes:
    """Return the body, or the outline of a large one, with `served_name`, the engine's name for the model.

    The original bytes if the body has that name already or names no model.
    """
    if request.model == served_name or not request.names_model:
        return request.outline
    new_body = _replace_field(request.outline, b'"model"', _MODEL, b'"model":' + json.dumps(served_name).encode())
    return new_body if new_body is not None else json_bytes(request.outline_fields | {"model": served_name})


def with_usage(request: InferenceRequest, served_name: str) -> bytes:
    """Return the body, or the outline of a large one, with `served_name` and with `stream_options.include_usage` set
    to true. Other stream options stay."""
    if "stream_options" not in request.outline_fields:
        return _insert_fields(as_named(request, served_name), b'"stream_options":{"include_usage":true},')
    return json_bytes(_renamed_fields(request, served_name) | {"stream_options": _options(request)})


def with_field(request: InferenceRequest, name: str, *, value: Any) -> InferenceRequest:
    """Return a copy of the request in which the field `name` is `value`, whether or not the request has that field. Of
    a large body, only the outline changes: `raw` and `fields` stay."""
    fields = {**request.outline_fields, name: value}
    if name in request.outline_fields:
        outline = json_bytes(fields)
    else:
        outline = _insert_fields(request.outline, b'"%b":%b,' % (name.encode(), json_bytes(value)))
    return replace(request, outline=outline, outline_fields=fields)


def as_stream(request: InferenceRequest, served_name: str, *, ask_for_usage: bool) -> bytes:
    """Return the body of a blocking request, or the outline of a large one, with `"stream": true` and `served_name`.
    `ask_for_usage`: also with `stream_options.include_usage` set to true."""
    fields = request.outline_fields
    if ask_for_usage and "stream_options" in fields:
        new_fields = {"stream": True, "stream_options": _options(request)}
        return json_bytes(_renamed_fields(request, served_name) | new_fields)
    options = b'"stream_options":{"include_usage":true},' if ask_for_usage else b""
    if "stream" not in fields:
        return _insert_fields(as_named(request, served_name), b'"stream":true,' + options)
    raw = _replace_field(as_named(request, served_name), b'"stream"', _STREAM, b'"stream":true')
    if raw is None:
        raw = json_bytes(_renamed_fields(request, served_name) | {"stream": True})
    return _insert_fields(raw, options) if options else raw


def _insert_fields(raw: bytes, fields: bytes) -> bytes:
    position = raw.index(b"{") + 1
    if raw[position:].lstrip()[:1] == b"}":
        fields = fields[:-1]
    return raw[:position] + fields + raw[position:]


def _replace_field(raw: bytes, name: bytes, pattern: re.Pattern[bytes], field: bytes) -> bytes | None:
    # The body has a field of this name. If the quoted name occurs once and nothing is escaped, it is this field's:
    # inside a string, a quote follows a backslash.
    if raw.count(name) != 1 or _ESCAPED_LETTER in raw:
        return None
    match = pattern.search(raw)
    return None if match is None else raw[: match.start()] + field + raw[match.end() :]


def _renamed_fields(request: InferenceRequest, served_name: str) -> dict[str, Any]:
    return request.outline_fields | {"model": served_name} if request.names_model else request.outline_fields


def _options(request: InferenceRequest) -> dict[str, Any]:
    options = request.outline_fields.get("stream_options")
    return (options if isinstance(options, dict) else {}) | {"include_usage": True}
