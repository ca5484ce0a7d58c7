"""Errors without the frames that they came through."""

from __future__ import annotations

import pytest

from common.tracebacks import without_tracebacks


def _fail_third() -> None:
    try:
        try:
            dict[str, int]()["first"]
        except KeyError as error:
            raise OSError("second") from error
    except OSError:
        raise ValueError("third") from None


def test_an_error_and_those_that_caused_it_lead_to_no_frame() -> None:
    with pytest.raises(ValueError, match="third") as raised:
        _fail_third()
    error = raised.value
    assert without_tracebacks(error) is error
    second = error.__context__
    assert isinstance(second, OSError)
    first = second.__cause__
    assert isinstance(first, KeyError)
    assert [each.__traceback__ for each in (error, second, first)] == [None, None, None]


def test_errors_that_caused_each_other_are_looked_at_once() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert without_tracebacks(first) is first
