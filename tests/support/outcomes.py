"""What a call gives, or is refused with, as one expression."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from contract.errors import RoundhouseError

T = TypeVar("T")


def present(value: T | None) -> T:
    """A value that must be there."""
    assert value is not None
    return value


def error_of(call: Callable[[], object]) -> RoundhouseError:
    """The error that the call raises."""
    with pytest.raises(RoundhouseError) as raised:
        call()
    return raised.value


def refusal(call: Callable[[], object]) -> tuple[str, str | None]:
    """Code and `param` of the error that the call raises."""
    error = error_of(call)
    return error.entry.code, error.param
