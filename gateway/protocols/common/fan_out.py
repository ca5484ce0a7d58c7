"""Requests that ask for many answers: bounds, pieces, and one answer made of theirs. Pure.

An array of prompts that an engine gets whole fills the engine's own queue, where nobody is fair. In pieces, each is
admitted like a request of its own, and the others have their turn between two of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple

from contract.errors import RoundhouseError
from contract.routing import ModelRoute
from gateway.protocols.common.capabilities import modality_of
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.errors import decode_json
from gateway.protocols.common.field_reader import field_error
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.common.streams import DONE, data_of, split_events

_NAMES: Final = ("n_cmpl", "n")
"""llama.cpp's own field, and OpenAI's. llama-server reads the second if the first is missing."""


def check_choices(fields: Mapping[str, Any], route: ModelRoute) -> None:
    """Refuse a request for more answers (`n_cmpl` or `n`) than the model's engine generates per request
    (`route.max_choices`; None: no limit). Raises RoundhouseError `invalid_request`. Values that are no whole numbers
    pass; the engine refuses them."""
    if route.max_choices is None:
        return
    for name in _NAMES:
        count = fields.get(name)
        if count.__class__ is int and count > route.max_choices:
            message = (
                f"`{name}` must be at most {route.max_choices}, which is how many answers to one request "
                f"an engine of {route.name!r} makes; it is {count}."
            )
            raise RoundhouseError("invalid_request", message, param=name)


def count_slots(fields: Mapping[str, Any], route: ModelRoute, inputs: Sequence[str] = ("prompt",)) -> int:
    """Return how many of a replica's slots a request takes: one for each answer to each of its inputs.

    From 1 to `route.target_inflight`, because further answers wait inside the engine. 1 if `route.choices_take_slots`
    is false, and for texts to embed or documents to rerank where the engine makes one answer per request
    (`route.max_choices` 1). `inputs`: names of the fields that may list inputs; empty: the request has one.
    """
    if not route.choices_take_slots:
        return 1
    count = count_choices(fields)
    for name in inputs:
        if name == "prompt" or route.max_choices != 1:
            count *= count_prompts(fields.get(name))
    return min(count, route.target_inflight) if count > 1 else 1


def count_choices(fields: Mapping[str, Any]) -> int:
    """Return how many answers to each prompt a request asks for, as llama-server reads it: `n_cmpl`, or `n` if that is
    missing or null. Values below 1 or of the wrong type count as 1; the engine refuses them."""
    count = fields.get("n_cmpl")
    if count is None:
        count = fields.get("n")
    return count if count.__class__ is int and count > 1 else 1


def count_prompts(prompt: Any) -> int:
    """Return the number of prompts in the value of a request's `prompt`, at least 1. An array that holds a token (a
    number) is one prompt of tokens and texts; any other is an array of prompts. An empty array, and any value that is
    no array, counts as 1."""
    if not isinstance(prompt, list) or any(isinstance(part, int) for part in prompt):
        return 1
    return max(len(prompt), 1)


INPUTS_PER_PIECE: Final = 16
"""Least texts to embed, or documents to rerank, in a piece: engines compute them together."""
_CHOICES: Final = ("n", "n_cmpl", "best_of")
_LEAST_IMAGE_BYTES: Final = 25
"""Bytes of the shortest content part that an engine could take for an image."""
_EMBEDDING: Final = re.compile(rb'"embedding"\s*:\s*(\[[^\[\]{}"]*\]|"[^"\\]*")')
"""An embedding with its key, which cannot occur inside a JSON string, where each quote follows a backslash."""
_NO_EMBEDDING: Final = re.compile(rb'"embedding":null')


# Bounds.


class Bounds(NamedTuple):
    """The most that one request may ask for, from the settings."""

    inputs: int
    """Prompts, texts to embed, or documents to rerank."""
    choices: int
    """Answers to one prompt."""
    images: int


def check_bounds(request: InferenceRequest, inputs: Sequence[str], bounds: Bounds) -> None:
    """Refuse a request that asks for more than the bounds (`invalid_request`). `inputs`: names of the fields that list
    its inputs; empty: it has one."""
    fields = request.outline_fields
    for name in _CHOICES:
        if name in fields:
            count = fields[name]
            if count.__class__ is int and count > bounds.choices:
                raise field_error(name, f"must be at most {bounds.choices}; it is {count}")
    for name in inputs:
        count = count_prompts(fields.get(name))
        if count > bounds.inputs:
            raise field_error(name, f"must have at most {bounds.inputs} items; it has {count}")
    # Each image is an object with a type and data, so most requests need no second look.
    if request.size > _LEAST_IMAGE_BYTES * bounds.images and request.outline.count(b"{") > bounds.images:
        _check_images(fields, bounds)


def _check_images(fields: Fields, bounds: Bounds) -> None:
    for name in ("messages", "input"):
        items = fields.get(name)
        count = count_images(items) if isinstance(items, list) else 0
        if count > bounds.images:
            raise field_error(name, f"must have at most {bounds.images} images; there are {count}")


def count_images(items: list[Any]) -> int:
    """Return the number of images in messages or items of any API family, at any depth. A PDF counts as one."""
    count, pending = 0, [items]
    while pending:
        for part in pending.pop():
            if isinstance(part, dict):
                count += modality_of(part) == "image"
                source = part.get("source")
                inner_lists = [part.get("content"), part.get("output")]
                if isinstance(source, dict):
                    inner_lists.append(source.get("content"))
                pending += [inner for inner in inner_lists if isinstance(inner, list)]
    return count


# Pieces.


class Split(NamedTuple):
    """How the inputs of a request are cut into pieces, each of which is asked for by a request of its own. `name`: the
    field that lists the inputs, which are `items`. `size`: inputs in a piece."""

    name: str
    """The field that lists the inputs."""
    items: list[Any]
    size: int
    """Inputs in a piece."""

    def pieces(self) -> Iterator[Any]:
        """Yield the value of the field in each piece, in order: a list, or where a piece has one prompt, the prompt."""
        if self.name == "prompt":
            yield from self.items
        else:
            for start in range(0, len(self.items), self.size):
                yield self.items[start : start + self.size]


def plan_split(fields: Fields, inputs: Sequence[str], route: ModelRoute) -> Split | None:
    """Return how a request to the model is cut into pieces; None: its engine gets it whole, because it has no more
    inputs than the engine answers at once, or nothing is known about its engine's slots. `inputs`: names of the fields
    that may list its inputs.

    An engine that makes one answer per request (`route.max_choices` 1) gets one prompt at a time.
    """
    if not route.choices_take_slots:
        return None
    for name in inputs:
        count = count_prompts(fields.get(name))
        if count > 1:
            if name == "prompt":
                is_whole = count * count_choices(fields) <= route.target_inflight and route.max_choices != 1
                return None if is_whole else Split(name, fields[name], 1)
            size = max(INPUTS_PER_PIECE, route.target_inflight)
            return None if count <= size else Split(name, fields[name], size)
    return None


# Answers.


@dataclass(slots=True)
class PiecedAnswer:
    """The answer to a request that was cut into pieces, made of the answers to these: by `take_answer` for each and
    then `join`, or for a stream by `take_events` and then `end_events`."""

    form: AnswerForm
    split: Split
    asked: Fields
    """The client's request."""
    _parts: dict[int, Any] = field(default_factory=dict)
    _stream_top: Fields | None = None
    _stream_usage: Fields = field(default_factory=dict)
    _usage_event: Fields | None = None

    def piece_fields(self, value: Any) -> Fields:
        """Return the fields of the request for a piece. `value`: as from `Split.pieces`."""
        return {**self.asked, self.split.name: value, **self.form.asked_otherwise}

    def take_answer(self, number: int, body: bytes) -> None:
        """Keep the answer to the piece `number`, counted from 0. Raises RoundhouseError `engine_disconnected` if it is
        no answer of this form."""
        self._parts[number] = self.form.read_part(body, number * self.split.size, self.asked)

    def join(self) -> bytes:
        """Return the whole answer. Call when every piece has its answer."""
        return self.form.join_parts([self._parts[number] for number in sorted(self._parts)], self.asked)

    def take_events(self, number: int, part: bytes) -> tuple[bytes, Fields | None]:
        """Return the events of the client's stream for whole events of the piece `number`, and the error with which
        the piece ended; None: it has not.

        Comments and `[DONE]` are left out. So is an event that has usage and no choice: `end_events` adds them up.
        """
        events = b""
        for event in split_events(part):
            fields = decode_json(data_of(event))
            if not isinstance(fields, dict):
                continue  # a comment, or the end
            error = fields.get("error")
            if isinstance(error, dict):
                return events, error
            if self._stream_top is None:
                self._stream_top = {name: fields[name] for name in ("id", "created") if name in fields}
            fields |= self._stream_top
            if fields.get("choices") == [] and isinstance(fields.get("usage"), dict):
                add_counts(self._stream_usage, fields["usage"])
                self._usage_event = fields
            else:
                self.form.renumber(fields, number * self.split.size, self.asked)
                events += b"data: %b\n\n" % json_bytes(fields)
        return events, None

    def end_events(self) -> bytes:
        """Return the last events of the client's stream, perhaps none: the pieces' usage added up, if they told it, and
        what ends a stream of this API. Call when every piece has ended."""
        usage = b""
        if self._usage_event is not None:
            usage = b"data: %b\n\n" % json_bytes({**self._usage_event, "usage": self._stream_usage})
        return usage + self.form.end_mark


class AnswerForm:
    """How one API's answers to pieces are joined. The base is that of OpenAI's completions."""

    asked_otherwise: ClassVar[Fields] = {}
    """Fields that a piece's request has in the place of the client's."""
    end_mark: ClassVar[bytes] = DONE
    """The last event of a stream."""

    def renumber(self, fields: Fields, offset: int, asked: Fields) -> None:
        """Change the places in an answer to a piece, or in an event of one, to those in the whole answer. `offset`:
        inputs before the piece. `asked`: the client's request."""
        choices = fields.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            _shift(choice, offset * count_choices(asked))

    def read_part(self, body: bytes, offset: int, asked: Fields) -> Any:
        """Return what `join_parts` needs of the answer to a piece. `body`: that answer. `offset`: inputs before the
        piece. `asked`: the client's request. Raises RoundhouseError `engine_disconnected` if it is no answer of this
        form."""
        fields = decode_json(body)
        if not isinstance(fields, dict) or not isinstance(fields.get("choices"), list):
            raise _no_answer()
        self.renumber(fields, offset, asked)
        return fields

    def join_parts(self, parts: list[Any], asked: Fields) -> bytes:
        """Return the whole answer: that of the first piece, without its timings, with the choices of all and their
        usage added up. `parts`: what `read_part` returned of each piece, in order. `asked`: the client's request."""
        whole = {name: value for name, value in parts[0].items() if name != "timings"}
        whole["choices"] = [choice for part in parts for choice in part["choices"]]
        return json_bytes(_with_counts(whole, "usage", parts))


class EmbeddingsForm(AnswerForm):
    """OpenAI's embeddings. The vectors stay as they came: they are nearly all of the answer."""

    def read_part(self, body: bytes, offset: int, asked: Fields) -> tuple[bytes, Fields]:
        """Return the items of the answer as JSON, and the rest of it. Parameters and error as of
        `AnswerForm.read_part`."""
        vectors: list[bytes] = []

        def take_vector(match: re.Match[bytes]) -> bytes:
            vectors.append(match[1])
            return b'"embedding":null'

        fields = decode_json(_EMBEDDING.sub(take_vector, body))
        items = fields.pop("data", None) if isinstance(fields, dict) else None
        if not isinstance(items, list) or not items:
            raise _no_answer()
        for item in items:
            _shift(item, offset)
        encoded = json_bytes(items)
        if encoded.count(b'"embedding":null') != len(vectors):
            raise _no_answer()
        taken = iter(vectors)
        return _NO_EMBEDDING.sub(lambda _: b'"embedding":%b' % next(taken), encoded), fields

    def join_parts(self, parts: list[tuple[bytes, Fields]], asked: Fields) -> bytes:
        """Return the JSON of one answer: the embeddings of all parts in order, and the sum of their usage."""
        rest = json_bytes(_with_counts(parts[0][1], "usage", [fields for _, fields in parts]))
        items = b",".join(items[1:-1] for items, _ in parts)
        return b'{"data":[%b]%b%b' % (items, b"" if rest == b"{}" else b",", rest[1:])


class RankingForm(AnswerForm):
    """Rankings, of every form. Each document has its score whatever others are ranked with it."""

    asked_otherwise: ClassVar[Fields] = {"top_n": None}

    def read_part(self, body: bytes, offset: int, asked: Fields) -> Fields:
        """Return the ranking of the piece's documents, with their places in the whole request. Parameters and error as
        of `AnswerForm.read_part`."""
        fields = decode_json(body)
        results = fields.get("results") if isinstance(fields, dict) else None
        if not isinstance(results, list):
            raise _no_answer()
        for result in results:
            _shift(result, offset)
        return dict(fields)

    def join_parts(self, parts: list[Any], asked: Fields) -> bytes:
        """Return the ranking of all documents, the best first and no more than the client asked for."""
        results = [result for part in parts for result in part["results"]]
        results.sort(key=lambda result: (-result["relevance_score"], result["index"]))
        whole = {**parts[0], "results": results[: asked.get("top_n")]}
        return json_bytes(_with_counts(_with_counts(whole, "usage", parts), "meta", parts))


class NativeForm(AnswerForm):
    """llama.cpp's own completions and embeddings: a list with an item for each answer."""

    end_mark: ClassVar[bytes] = b""

    def renumber(self, fields: Fields, offset: int, asked: Fields) -> None:
        """Change the place of one answer, or of an event of one, to that in the whole answer. `offset`: inputs before
        the piece. `asked`: the client's request."""
        _shift(fields, offset * count_choices(asked))

    def read_part(self, body: bytes, offset: int, asked: Fields) -> list[Any]:
        """Return the answers to the piece as a list; the engine answers one with an object. Parameters and error as of
        `AnswerForm.read_part`."""
        value = decode_json(body)
        items = value if isinstance(value, list) else [value]
        if not all(isinstance(item, dict) for item in items):
            raise _no_answer()
        for item in items:
            self.renumber(item, offset, asked)
        return items

    def join_parts(self, parts: list[list[Any]], asked: Fields) -> bytes:
        """Return the JSON array of the items of all parts, in order."""
        return json_bytes([item for part in parts for item in part])


def add_counts(total: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Add the numbers of `more` to those of the same name in `total`, also in objects inside; of other values, the
    first one counts."""
    for name, value in more.items():
        if isinstance(value, dict):
            inner = total.get(name)
            total[name] = inner = dict(inner) if isinstance(inner, dict) else {}
            add_counts(inner, value)
        elif value.__class__ in (int, float) and total.get(name).__class__ in (int, float):
            total[name] += value
        else:
            total.setdefault(name, value)


def _with_counts(whole: Fields, name: str, parts: Sequence[Fields]) -> Fields:
    if not any(isinstance(part.get(name), dict) for part in parts):
        return whole
    total: Fields = {}
    for part in parts:
        if isinstance(part.get(name), dict):
            add_counts(total, part[name])
    return {**whole, name: total}


def _shift(item: Any, offset: int) -> None:
    index = item.get("index") if isinstance(item, dict) else None
    if index.__class__ is int:
        item["index"] = index + offset


def _no_answer() -> RoundhouseError:
    return RoundhouseError("engine_disconnected", "The engine failed: a part of its answer has another form.")


ANSWER_FORMS: Final[Mapping[str, AnswerForm]] = {
    "/v1/completions": AnswerForm(),
    "/v1/embeddings": EmbeddingsForm(),
    "/v1/rerank": RankingForm(),
    "/rerank": RankingForm(),
    "/v2/rerank": RankingForm(),
    "/completion": NativeForm(),
    "/embedding": NativeForm(),
}
"""By path: the forms of the APIs whose requests list inputs (`ApiSpec.inputs`)."""
