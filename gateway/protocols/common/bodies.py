"""Adapts request bodies to engines: the model's name there, a LoRA module, constraints on the answer's form, and the
fields that a model of somebody else's gets. Pure.

llama.cpp and vLLM ignore each other's fields for structured output. OpenAI's `response_format` works with both in
chats, and with vLLM alone in completions.

Clients add fields of their own: Codex's `client_metadata` names the installation and the path of the workspace. Our own
engines run where the gateway runs and get all fields. A remote gets the fields that the API family of its path defines
and those that the model's definition lists (`ModelRoute.extra_fields`).

Routing decodes every body anyway, but encoding it again would cost as much. So a missing field is inserted after the
first brace, and a present one is replaced in place. For a large body, this happens to its outline.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final, Literal, NamedTuple, get_args

from contract.errors import RoundhouseError
from contract.routing import ModelRoute
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.field_reader import describe_value, field_error, require_value
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.common.request_fields import REQUEST_FIELDS

LLAMA_SERVER: Final = "llama_server"
VLLM_BACKENDS: Final = ("vllm_serve", "vllm")
OPENAI_REMOTE: Final = "openai_remote"
"""Backend that may be OpenAI itself, which understands OpenAI's own terms and refuses fields that it does not know."""

Kind = Literal["json", "json_object", "choice", "grammar", "regex", "structural_tag"]
"""Kinds of constraint, named as in vLLM's `structured_outputs`."""

_HOLDER: Final = "structured_outputs"
"""vLLM's newer field, an object with one `Kind`. The older fields are `guided_*`."""
_KIND_OF_FIELD: Final[Mapping[str, Kind]] = {
    "grammar": "grammar",
    "json_schema": "json",
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_json_object": "json_object",
}
CONSTRAINT_FIELDS: Final = (*_KIND_OF_FIELD, _HOLDER)
_FIELD_SET: Final = frozenset(CONSTRAINT_FIELDS)
_KINDS: Final = get_args(Kind)
_LLAMA: Final = (LLAMA_SERVER, "llama_cpp")
_LLAMA_FIELDS: Final = ("grammar", "json_schema")
_RESPONSE_FORMAT: Final = "response_format"
_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"})


class _Constraint(NamedTuple):
    """One constraint on the answer's form."""

    kind: Kind
    value: Any
    field: str
    """Field of the request that sets the constraint."""


def adapt_constraints(
    fields: Fields, route: ModelRoute, *, is_chat: bool, format_name: str = _RESPONSE_FORMAT
) -> Fields:
    """Return the fields of a chat completion (`is_chat`) or a completion with the output constraint as the model's
    engine understands it; the same object if nothing must change. Fields for engines other than llama.cpp and vLLM pass
    unchanged and unchecked.

    The text of constraints is interpreted, so `fields` must be the whole body if it has any of `CONSTRAINT_FIELDS`.
    `format_name`: the client's name of `response_format`, for errors.

    Raises:
        RoundhouseError: `structured_output_unsupported`: llama.cpp has no such constraint (a regular expression or
            structural tags). `invalid_request`: the request has two constraints, or one of the wrong form.
    """
    if route.backend in _LLAMA:
        return _adapt_for_llama(fields, route.name, format_name, is_chat=is_chat)
    if route.backend in VLLM_BACKENDS and not _is_free(fields) and (constraint := _find_constraint(fields)) is not None:
        if constraint.field == _HOLDER:
            return fields
        return _without(fields, CONSTRAINT_FIELDS) | {_HOLDER: {constraint.kind: constraint.value}}
    return fields


def _adapt_for_llama(fields: Fields, model: str, format_name: str, *, is_chat: bool) -> Fields:
    constraint = None if _is_free(fields) else _find_constraint(fields)
    if _RESPONSE_FORMAT in fields and (constraint is not None or not is_chat):
        asked_format = _read_response_format(fields)
        if constraint is not None and asked_format is not None:
            raise _two_constraints(constraint.field, format_name)
        constraint = constraint or asked_format
    if constraint is None or constraint.field in _LLAMA_FIELDS:
        return fields
    return _without(fields, (*CONSTRAINT_FIELDS, _RESPONSE_FORMAT)) | _llama_fields(constraint, model)


def _is_free(fields: Fields) -> bool:
    return _FIELD_SET.isdisjoint(fields)


def _without(fields: Fields, names: tuple[str, ...]) -> Fields:
    return {name: value for name, value in fields.items() if name not in names}


def _find_constraint(fields: Fields) -> _Constraint | None:
    found = [
        _Constraint(kind, fields[name], name) for name, kind in _KIND_OF_FIELD.items() if _says_something(fields, name)
    ]
    holder = fields.get(_HOLDER)
    if holder is not None:
        kinds = require_value(holder, dict, _HOLDER)
        held = [_Constraint(kind, kinds[kind], _HOLDER) for kind in _KINDS if _says_something(kinds, kind)]
        if not held:
            raise field_error(_HOLDER, f"must have one of {', '.join(_KINDS)}; {describe_value(holder)}")
        found += held
    if len(found) > 1:
        raise _two_constraints(found[0].field, found[1].field)
    return found[0] if found else None


def _says_something(fields: Fields, name: str) -> bool:
    return fields.get(name) not in (None, "", False)


def _two_constraints(one: str, other: str) -> RoundhouseError:
    message = f"The answer can be held to one form: `{one}` and `{other}` ask for two."
    return RoundhouseError("invalid_request", message, param=other)


def _read_response_format(fields: Fields) -> _Constraint | None:
    asked = fields[_RESPONSE_FORMAT]
    kind = asked.get("type") if isinstance(asked, dict) else None
    if asked is None or kind == "text":
        return None
    if kind == "json_object":
        return _Constraint("json", asked.get("schema") or {"type": "object"}, _RESPONSE_FORMAT)
    outer = asked.get("json_schema") if isinstance(asked, dict) else None
    if kind == "json_schema" and isinstance(outer, dict) and "schema" in outer:
        return _Constraint("json", outer["schema"], _RESPONSE_FORMAT)
    rule = "must be of type text, json_object, or json_schema with `json_schema.schema`"
    raise field_error(_RESPONSE_FORMAT, f"{rule}; {describe_value(asked)}")


def _llama_fields(constraint: _Constraint, model: str) -> Fields:
    kind, value, field = constraint
    if kind == "json":
        return {"json_schema": _read_schema(value, field)}
    if kind == "json_object":
        return {"json_schema": {"type": "object"}}
    if kind == "grammar":
        return {"grammar": require_value(value, str, field)}
    if kind == "choice":
        return {"grammar": _write_choice(value, field)}
    word = "a regular expression" if kind == "regex" else "structural tags"
    forms = "a JSON Schema, a choice or a GBNF grammar"
    message = f"The answers of the model {model!r} can be held to {forms}, not to {word}."
    raise RoundhouseError("structured_output_unsupported", message, param=field)


def _read_schema(value: Any, field: str) -> Any:
    """Return a JSON Schema that is given as an object or, as vLLM permits, as its JSON."""
    schema = value
    if isinstance(value, str):
        try:
            schema = json.loads(value)
        except (ValueError, RecursionError):
            schema = None
    if not isinstance(schema, dict):
        raise field_error(field, f"must be a JSON Schema; {describe_value(value)}")
    return schema


def _write_choice(value: Any, field: str) -> str:
    """Return a GBNF grammar that permits exactly one of these texts."""
    texts = require_value(value, list, field)
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise field_error(field, f"must be an array of texts; {describe_value(value)}")
    return "root ::= " + " | ".join(f'"{text.translate(_ESCAPES)}"' for text in texts)


_LORA_FIELD: Final = "lora"


def route_to_module(request: InferenceRequest, route: ModelRoute) -> ModelRoute:
    """Return `route` with the LoRA module that the request names in `lora` as the engine's name for the model. The same
    object if the request names none, or if the engine reads the field itself (`ModelRoute.lora_modules` is None). The
    field stays in the request: the engines concerned ignore it. Raises RoundhouseError `invalid_request` if there is no
    such module."""
    modules = route.lora_modules
    if modules is None or (name := request.outline_fields.get(_LORA_FIELD)) is None:
        return route
    if name not in modules:
        known = f"one of {', '.join(modules)}" if modules else "left out: the model has no LoRA modules"
        raise RoundhouseError("invalid_request", f"`lora` must be {known}.", param=_LORA_FIELD)
    return route.model_copy(update={"served_name": name})


CHAT_FIELDS: Final = frozenset(REQUEST_FIELDS["chat"])
COMPLETION_FIELDS: Final = frozenset(REQUEST_FIELDS["completions"])
EMBEDDING_FIELDS: Final = frozenset(REQUEST_FIELDS["embeddings"])
MESSAGE_FIELDS: Final = frozenset(REQUEST_FIELDS["messages"])
RERANK_FIELDS: Final = frozenset(
    {"model", "query", "documents", "top_n", "return_documents", "rank_fields", "max_chunks_per_doc"}
    | {"max_tokens_per_doc", "priority", "truncation"}
)
"""Jina's and Cohere's fields of rankings."""


def drop_foreign_fields(fields: Fields, known_fields: Collection[str], route: ModelRoute) -> Fields:
    """Return the fields of a request that the model's engine gets; the same object if all of them pass.

    `known_fields`: names that the path's API family defines, such as `CHAT_FIELDS`. All fields pass if
    `route.extra_fields` is None, which is so for engines that Roundhouse runs itself. Otherwise those pass that are in
    `known_fields` or `route.extra_fields`, and the one that switches thinking (`route.thinking_control`).
    """
    foreign_names = _foreign_names(fields, known_fields, route)
    return {name: fields[name] for name in fields if name not in foreign_names} if foreign_names else fields


def check_foreign_fields(fields: Fields, known_fields: Collection[str], route: ModelRoute) -> None:
    """Refuse a field that constrains the answer's form if `drop_foreign_fields` would drop it
    (`structured_output_unsupported`). A field that is null, false or an empty string constrains nothing, and passes."""
    foreign_names = _foreign_names(fields, known_fields, route)
    for name in CONSTRAINT_FIELDS:
        if name in foreign_names and fields[name] not in (None, "", False):
            message = (
                f"The model {route.name!r} is served elsewhere, and `{name}` is no field of this API: use "
                f"`response_format`, or list the field in the model's `remote_fields`."
            )
            raise RoundhouseError("structured_output_unsupported", message, param=name)


def _foreign_names(fields: Fields, known_fields: Collection[str], route: ModelRoute) -> Collection[str]:
    if route.extra_fields is None:
        return ()
    return [
        name
        for name in fields
        if name not in known_fields and name not in route.extra_fields and name != route.thinking_control
    ]


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
    return json_bytes(_renamed_fields(request, served_name) | {"stream_options": _stream_options(request)})


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
        new_fields = {"stream": True, "stream_options": _stream_options(request)}
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


def _stream_options(request: InferenceRequest) -> dict[str, Any]:
    options = request.outline_fields.get("stream_options")
    return (options if isinstance(options, dict) else {}) | {"include_usage": True}
