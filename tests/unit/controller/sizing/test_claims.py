"""Claims of replicas that run, by what they were seen to hold."""

from __future__ import annotations

import pytest

from controller.sizing.claims import HeldMemory, raise_claims
from controller.state import HOST

TWO = {"GPU-a": 8000, "GPU-b": 8000, HOST: 500}


@pytest.mark.parametrize(
    ("held", "raised"),
    [
        (None, TWO),
        (HeldMemory(), TWO),
        (HeldMemory(7000, 400), TWO),
        (HeldMemory(9100, 400), {"GPU-a": 9100, "GPU-b": 9100, HOST: 500}),
        (HeldMemory(None, 700), {"GPU-a": 8000, "GPU-b": 8000, HOST: 700}),
    ],
)
def test_claims_are_never_less_than_what_is_held_and_never_lowered(
    held: HeldMemory | None, raised: dict[str, int]
) -> None:
    assert raise_claims(TWO, held) == raised


def test_main_memory_that_nobody_predicted_is_claimed_once_it_is_seen() -> None:
    assert raise_claims({}, HeldMemory(None, 300)) == {HOST: 300}
    assert raise_claims({"GPU-a": 100}, HeldMemory(50, None)) == {"GPU-a": 100}


def test_the_most_that_was_seen_counts() -> None:
    assert HeldMemory(5, None).largest_of(HeldMemory(3, 7)) == HeldMemory(5, 7)
    assert HeldMemory().largest_of(HeldMemory()) == HeldMemory()
