"""Properties of shortened embeddings, over any vectors and any length."""

from __future__ import annotations

import base64
import math
import struct
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.protocols.embeddings import Shortening, shorten_vectors
from tests.support.campaign import campaign_count
from tests.support.outcomes import present

numbers = st.floats(-1e6, 1e6, width=32)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[list[float]], int]:
    """Vectors of one length, and a shorter one."""
    own = draw(st.integers(2, 40))
    vectors = draw(st.lists(st.lists(numbers, min_size=own, max_size=own), min_size=1, max_size=5))
    return vectors, draw(st.integers(1, own - 1))


def cut(embeddings: list[Any], dimensions: int) -> list[Any]:
    told = {"data": [{"index": number, "embedding": each} for number, each in enumerate(embeddings)], "usage": {}}
    made = present(shorten_vectors(told, Shortening(dimensions, is_declared=True, model="m")))
    assert [item["index"] for item in made["data"]] == list(range(len(embeddings)))
    return [item["embedding"] for item in made["data"]]


def packed(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


@settings(max_examples=campaign_count(40, 3_000))
@given(batches())
def test_a_shortened_vector_has_length_1_and_keeps_its_direction(made: tuple[list[list[float]], int]) -> None:
    vectors, dimensions = made
    for vector, short in zip(vectors, cut(vectors, dimensions), strict=True):
        beginning = vector[:dimensions]
        length = math.hypot(*beginning)
        assert len(short) == dimensions
        assert math.isclose(math.hypot(*short), 1.0) or not length
        assert all(
            math.isclose(one * length, other, abs_tol=1e-9 * length)
            for one, other in zip(short, beginning, strict=True)
        )


@settings(max_examples=campaign_count(40, 3_000))
@given(batches())
def test_base64_holds_the_same_numbers(made: tuple[list[list[float]], int]) -> None:
    vectors, dimensions = made
    as_base64 = cut([packed(vector) for vector in vectors], dimensions)
    assert as_base64 == [packed(vector) for vector in cut(vectors, dimensions)]


@settings(max_examples=campaign_count(40, 3_000))
@given(batches())
def test_shortening_twice_is_shortening_once(made: tuple[list[list[float]], int]) -> None:
    vectors, dimensions = made
    between = (len(vectors[0]) + dimensions) // 2
    once = cut(vectors, dimensions)
    twice = cut(cut(vectors, between), dimensions) if between not in (dimensions, len(vectors[0])) else once
    for one, other in zip(once, twice, strict=True):
        assert all(math.isclose(a, b, abs_tol=1e-9) for a, b in zip(one, other, strict=True))
