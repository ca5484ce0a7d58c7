"""OpenAI's embeddings, passed through; vectors are shortened here where an engine does not know `dimensions`. Pure."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from contract.errors import RoundhouseError
from contract.routing import ModelRoute
from gateway.protocols.common import bodies, errors
from gateway.protocols.common.bodies import EMBEDDING_FIELDS
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.field_reader import describe_value, field_error, optional_count, require_choice
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.common.json_dialect import JsonDialect
from gateway.protocols.common.request import InferenceRequest

_ENGINES_OWN: Final = ("messages", "content")
"""Fields that some engines take in place of `input`: a conversation (vLLM), and llama.cpp's older name."""
_ITEMS: Final = frozenset({str, int, list, dict})
"""Types of an array's items: texts; tokens, which together are one input; arrays of tokens; an engine's own objects,
for images."""
_TOKENS: Final = frozenset({int, str})
"""Types inside an array of tokens. llama.cpp takes texts among tokens."""
_NUMBERS: Final = frozenset({float, int})


@dataclass(frozen=True, slots=True)
class Shortening:
    """How the gateway shortens an engine's embeddings to the `dimensions` that a request asks for. `is_declared` False:
    the model is not made for that, so that embeddings of another length are refused. `is_unpacked`: the engine is asked
    for base64, and the client gets numbers."""

    dimensions: int
    """Numbers in each embedding that the client asked for; at least 1."""
    is_declared: bool
    """Whether the model was trained so that the start of an embedding is an embedding itself. False: embeddings of
    another length are refused."""
    model: str
    """The model's name, for errors."""
    is_unpacked: bool = False
    """Whether the engine was asked for base64 although the client gets numbers, so that vectors must be decoded."""


def check_fields(fields: Fields) -> None:
    """Refuse a request for embeddings that no engine could answer (`invalid_request`): an `input` that is missing,
    empty or of a wrong type (unless an engine's own field stands for it), or a wrong `encoding_format` or
    `dimensions`."""
    if (encoding := fields.get("encoding_format")) is not None:
        require_choice(encoding, ("float", "base64"), "encoding_format")
    optional_count(fields, "dimensions", 1)
    if "input" in fields or not any(name in fields for name in _ENGINES_OWN):
        _check_input(fields.get("input"))


def shorten_vectors(answer: Any, asked: Shortening) -> Fields | None:
    """Return a copy of an engine's decoded answer with vectors of `asked.dimensions` numbers; None if nothing must
    change. A vector that is cut is scaled to Euclidean length 1; one that has this size already keeps its numbers.
    Vectors in base64 (float32, little-endian) stay base64, unless `asked.is_unpacked` makes them numbers.

    Raises:
        RoundhouseError: `dimensions_unsupported`: the vectors are shorter, or the model is not declared to permit the
            cut. `engine_disconnected`: the answer holds no embeddings.
    """
    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, list) or not data:
        raise _no_embeddings()
    items = [_shorten_item(item, asked) for item in data]
    return None if items == data else {**answer, "data": items}


def normalize_vector(vector: Sequence[float]) -> list[float]:
    """Return the vector scaled to Euclidean length 1; a vector of zeros keeps its numbers. Raises RoundhouseError
    `engine_disconnected` if the length is not finite."""
    length = math.hypot(*vector) or 1.0
    if not math.isfinite(length):
        raise _no_embeddings()  # JSON cannot express such numbers
    return [number / length for number in vector]


def _shorten_item(item: Any, shortening: Shortening) -> Fields:
    vector = item.get("embedding") if isinstance(item, dict) else None
    if isinstance(vector, str):
        return _shorten_packed(item, vector, shortening)
    if not isinstance(vector, list) or not vector or not _NUMBERS.issuperset(map(type, vector)):
        raise _no_embeddings()
    return (
        {**item, "embedding": normalize_vector(vector[: shortening.dimensions])}
        if _needs_shortening(len(vector), shortening)
        else item
    )


def _shorten_packed(item: Fields, vector: str, shortening: Shortening) -> Fields:
    """Shorten a vector in base64 of float32, little-endian."""
    vector_bytes = _bytes_of(vector)
    layout = f"<{shortening.dimensions}f"
    numbers: Sequence[float] | None = None
    if _needs_shortening(len(vector_bytes) // 4, shortening):
        numbers = normalize_vector(struct.unpack_from(layout, vector_bytes))
    if shortening.is_unpacked:
        numbers = numbers or struct.unpack(layout, vector_bytes)
        if not all(map(math.isfinite, numbers)):
            raise _no_embeddings()  # JSON cannot express such numbers
        fields = {name: value for name, value in item.items() if name != "encoding_format"}  # llama-server repeats it
        return {**fields, "embedding": numbers}
    return {**item, "embedding": base64.b64encode(struct.pack(layout, *numbers)).decode()} if numbers else item


def _needs_shortening(own_dimensions: int, shortening: Shortening) -> bool:
    if shortening.dimensions == own_dimensions:
        return False
    if shortening.dimensions < own_dimensions and shortening.is_declared:
        return True
    most = "at most " if shortening.is_declared else ""
    message = (
        f"`dimensions` is {shortening.dimensions}; "
        f"the model {shortening.model!r} gives embeddings of {most}{own_dimensions}."
    )
    raise RoundhouseError("dimensions_unsupported", message, param="dimensions")


def _bytes_of(vector: str) -> bytes:
    try:
        vector_bytes = base64.b64decode(vector, validate=True)
    except ValueError:
        raise _no_embeddings() from None
    if not vector_bytes or len(vector_bytes) % 4:
        raise _no_embeddings()
    return vector_bytes


def _check_input(value: Any) -> None:
    if isinstance(value, list):
        # Types first: an array of tokens is long, and needs no second look.
        kinds = _check_kinds(value, _ITEMS, "input")
        if str in kinds and "" in value:
            raise field_error(f"input[{value.index('')}]", "must not be empty")
        if list in kinds:
            for number, item in enumerate(value):
                if isinstance(item, list):
                    _check_kinds(item, _TOKENS, f"input[{number}]")
    elif not isinstance(value, str | dict):
        raise field_error("input", f"must be a string, tokens, or an array of either; {describe_value(value)}")
    elif not value:
        raise field_error("input", "must not be empty")


def _check_kinds(items: list[Any], accepted_kinds: frozenset[type], place: str) -> set[type]:
    if not items:
        raise field_error(place, "must not be empty")
    kinds = set(map(type, items))
    if not accepted_kinds.issuperset(kinds):
        number = next(number for number, item in enumerate(items) if type(item) not in accepted_kinds)
        rule = "must be a token" if accepted_kinds is _TOKENS else "must be a string or tokens"
        raise field_error(f"{place}[{number}]", f"{rule}; {describe_value(items[number])}")
    return kinds


def _no_embeddings() -> RoundhouseError:
    return RoundhouseError("engine_disconnected", "The engine failed: its answer holds no embeddings.")


class EmbeddingsDialect(JsonDialect):
    """Dialect of `/v1/embeddings`, passed through, except that the gateway shortens vectors where the engine does not.
    `check_request` sets a request's `state` to the `Shortening` to do, or None; `engine_body` and `get_body_converter`
    read it there."""

    def check_request(self, request: InferenceRequest, route: ModelRoute) -> None:
        """Refuse invalid input (`invalid_request`), and set `request.state`. Whether the model has embeddings of this
        size shows in its answer only."""
        super().check_request(request, route)
        check_fields(request.outline_fields)
        dimensions = request.outline_fields.get("dimensions")
        request.state = None
        if dimensions is not None and (route.shortens_embeddings or not route.takes_dimensions):
            # Base64 decodes ten times as fast as JSON numbers, and every engine of ours knows it.
            is_unpacked = not route.takes_dimensions and request.outline_fields.get("encoding_format") != "base64"
            request.state = Shortening(dimensions, route.shortens_embeddings, route.name, is_unpacked)

    def engine_body(self, request: InferenceRequest, route: ModelRoute, *, as_stream: bool) -> bytes:
        """Return the body without `dimensions` and `encoding_format` where they are null, and without `dimensions` if
        the gateway shortens; the engine may then be asked for vectors in base64."""
        request = bodies.without_foreign_fields(request, EMBEDDING_FIELDS, route)
        fields = request.outline_fields
        dropped_names = [name for name in _OPTIONAL if name in fields and fields[name] is None]
        shortening: Shortening | None = request.state
        if shortening is not None:
            dropped_names.append("dimensions")
        if not dropped_names:
            return bodies.as_named(request, route.served_name)
        kept_fields = {name: value for name, value in fields.items() if name not in dropped_names} | {
            "model": route.served_name
        }
        if shortening is not None and shortening.is_unpacked:
            kept_fields["encoding_format"] = "base64"
        return json_bytes(kept_fields)

    def get_body_converter(self, request: InferenceRequest) -> Callable[[bytes], bytes] | None:
        shortening: Shortening | None = request.state
        return None if shortening is None else lambda body: _shorten_body(body, shortening)


EMBEDDINGS: Final = EmbeddingsDialect()
_OPTIONAL: Final = ("dimensions", "encoding_format")


def _shorten_body(body: bytes, shortening: Shortening) -> bytes:
    answer = shorten_vectors(errors.decode_json(body), shortening)
    return body if answer is None else errors.encode_json(answer)
