"""How many answers a request asks for, and how many of them an engine generates at once. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from controller.schema.errors import RoundhouseError
from controller.schema.routing import ModelRoute

_NAMES: Final = ("n_cmpl", "n")
"""llama.cpp's own field, and OpenAI's. llama-server reads the second if the first is missing."""


def check_choices(fields: Mapping[str, Any], route: ModelRoute) -> None:
    """Refuse a request for more answers (`n_cmpl` or `n`) than the model's engine generates per request
    (`route.max_choices`; None: no limit). Values that are no whole numbers pass; the engine refuses them.

    Raises:
        RoundhouseError: `invalid_request`; its `param` is the field.
    """
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
