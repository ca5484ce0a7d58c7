"""The tokens that a request is expected to take, by its body."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.tenancy.rate_limits import (
    LARGE_BODY_BYTES,
    MOST_ANSWERS,
    MOST_LOOKS,
    MOST_TOKENS,
    estimated_tokens,
)


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({}, 25),
        ({"max_tokens": 100}, 125),
        ({"max_completion_tokens": 7}, 32),
        ({"max_output_tokens": 7, "max_tokens": None}, 32),
        ({"max_tokens": -1}, 25),
        ({"max_tokens": True}, 25),
        ({"max_tokens": "100"}, 25),
        ({"max_tokens": 1.5}, 25),
        ({"max_tokens": 10**30}, 25),
        ({"max_tokens": [1]}, 25),
        ({"n_predict": 40}, 65),
        ({"n_predict": -1}, 25),
        ({"max_tokens": 100, "n": 3}, 325),
        ({"n_predict": 100, "n_cmpl": 2}, 225),
        ({"max_tokens": 100, "n": 0}, 125),
        ({"max_tokens": 100, "n": True}, 125),
        ({"max_tokens": 100, "n": "3"}, 125),
        ({"max_tokens": 100, "n": 10**400}, 25 + 100 * MOST_ANSWERS),
        ({"max_tokens": 16, "max_completion_tokens": 900_000}, 900_025),
        ({"max_tokens": 900_000, "max_completion_tokens": 16}, 900_025),
        ({"n": 3}, 25),
        ({"max_tokens": 1}, 26),
        ({"max_tokens": 0, "n_predict": 40}, 65),
        ({"max_tokens": MOST_TOKENS}, 25 + MOST_TOKENS),
        ({"max_tokens": MOST_TOKENS + 1}, 25),
        ({"max_tokens": 10, "n": 1, "n_cmpl": 2}, 45),
        ({"max_tokens": 10, "n": MOST_ANSWERS}, 25 + 10 * MOST_ANSWERS),
        ({"max_tokens": 10, "n": MOST_ANSWERS + 1}, 25 + 10 * MOST_ANSWERS),
    ],
)
def test_estimates(fields: dict[str, Any], tokens: int) -> None:
    for size in (100, 103):
        assert estimated_tokens(size, fields) == tokens


PICTURE = "data:image/png;base64," + "A" * 4_000_000
LETTERS = "x" * 4_000_000


def of(content: object, **more: object) -> int:
    """The estimate of a message with this content."""
    fields = {"messages": [{"role": "user", "content": content}], **more}
    return estimated_tokens(len(json.dumps(fields)), fields)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": PICTURE}},
        {"type": "input_image", "image_url": PICTURE},
        {"type": "input_audio", "input_audio": {"data": LETTERS, "format": "wav"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": LETTERS}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": PICTURE}},
        {"type": "tool_result", "content": [{"type": "image", "source": {"type": "base64", "data": LETTERS}}]},
    ],
)
def test_an_image_or_sound_is_no_text(part: dict[str, Any]) -> None:
    assert of([{"type": "text", "text": "What is this?"}, part]) < 100
    assert of([part, {"type": "text", "text": "And this?"}, part]) < 150
    assert of([{"type": "text", "text": LETTERS}, part]) > 1_000_000
    assert of([part], max_tokens=50, n=2) < 200


@pytest.mark.parametrize(
    "fields",
    [
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": PICTURE}]}]},
        {"prompt": {"prompt_string": "What is <__media__>?", "multimodal_data": [LETTERS]}},
        {"image_data": [{"data": LETTERS, "id": 1}]},
    ],
)
def test_nor_is_it_in_other_apis(fields: dict[str, Any]) -> None:
    assert estimated_tokens(len(json.dumps(fields)), fields) < 100


@pytest.mark.parametrize(
    "content",
    [
        PICTURE,
        [{"type": "text", "text": PICTURE}],
        [{"type": "document", "source": {"type": "text", "data": LETTERS}}],
        [{"type": "image_url", "image_url": {"url": "http://" + LETTERS}}],
    ],
)
def test_text_is_text_whatever_it_looks_like(content: object) -> None:
    assert of(content) > 1_000_000


def test_the_search_for_media_is_bounded_and_what_it_misses_counts() -> None:
    fields = {"messages": [[[]] * 1000] * 1000, "image_data": [{"data": LETTERS}]}
    assert estimated_tokens(8_000_000, fields) >= 1_000_000
    nested: list[Any] = []
    for _ in range(MOST_LOOKS * 2):
        nested = [nested]
    assert estimated_tokens(100_000, {"messages": nested}) == 25_000


def test_small_bodies_are_not_searched() -> None:
    fields = {"image_data": [{"data": "A" * 4000}]}
    assert estimated_tokens(LARGE_BODY_BYTES, fields) == LARGE_BODY_BYTES // 4
    assert estimated_tokens(LARGE_BODY_BYTES + 4, fields) == (LARGE_BODY_BYTES + 4 - 4000) // 4


@pytest.mark.parametrize("beside", [0, 3000])
@pytest.mark.parametrize("kind", ["list", "dict"])
def test_of_more_values_than_are_looked_at_the_first_are(beside: int, kind: str) -> None:
    """Whatever waits to be looked at is bounded, too: what a body holds is not copied."""
    many: Any = [{"data": LETTERS} if number == 100 else "x" for number in range(2 * MOST_LOOKS)]
    if kind == "dict":
        many = {f"x{number}": each for number, each in enumerate(many)}
    body: dict[str, Any] = {"messages": [*("x" for _ in range(beside)), many]}
    assert estimated_tokens(4_000_100, body) == 25
