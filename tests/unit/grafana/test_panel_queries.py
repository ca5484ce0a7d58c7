"""How tests make expressions answer with a figure."""

from __future__ import annotations

import pytest

from tests.support.panel_queries import compare_as_bool, fill_in


@pytest.mark.parametrize(
    ("expr", "made"),
    [
        ('up{job="a"} == 0', 'up{job="a"} == bool 0'),
        ('rate(a{status=~"5..",b!="c"}[5m]) > 0.05', 'rate(a{status=~"5..",b!="c"}[5m]) > bool 0.05'),
        ("a < b", "a < bool b"),
        ("a >= 3", "a >= bool 3"),
        ("a != 1", "a != bool 1"),
        ("a == bool 1", "a == bool 1"),
        ("sum(a) / b", "sum(a) / b"),
    ],
)
def test_a_comparison_answers_0_or_1(expr: str, made: str) -> None:
    assert compare_as_bool(expr) == made


def test_variables_are_filled_in() -> None:
    assert fill_in('rate(a{model=~"$model"}[$__rate_interval])') == 'rate(a{model=~".*"}[3s])'
