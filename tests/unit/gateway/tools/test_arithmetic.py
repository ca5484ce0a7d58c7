"""The calculator: values, problems, and that no expression takes long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tools.builtin.arithmetic import ArithmeticProblem, evaluate


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 1", "2"),
        ("0.1 + 0.2", "0.3"),
        ("2 ** 3 ** 2", "512"),
        ("-2 ** 2", "-4"),
        ("2 ** -1", "0.5"),
        ("2^10", "1024"),
        ("7 // -2", "-4"),
        ("7 % -2", "-1"),
        ("-7 % 3", "2"),
        ("1 / 3", "0.33333333333333333333"),
        ("(3 + 4) * -(2 - 5)", "21"),
        ("3 \u00d7 4 \u00f7 2 \u2212 1", "5"),
        ("1_000 * .5", "500"),
        ("1.5e3", "1500"),
        ("1e-7", "0.0000001"),
        ("1e-30", "1E-30"),
        ("10 ** 59", "1" + "0" * 59),
        ("10 ** 60", "1E+60"),
        ("123456789 ** 7", str(123456789**7)),
        ("sqrt(2)", "1.4142135623730950488"),
        ("sin(pi)", "0"),
        ("cos(0)", "1"),
        ("log(8, 2)", "3"),
        ("ln(e)", "1"),
        ("log10(1000)", "3"),
        ("round(2.567, 2)", "2.57"),
        ("round(1234, -2)", "1200"),
        ("floor(-1.5) + ceil(-1.5)", "-3"),
        ("max(1, 2, min(9, 4))", "4"),
        ("abs(-3.50)", "3.5"),
        ("-0", "0"),
        ("2 ** -9999999", "0"),
    ],
)
def test_values(expression: str, value: str) -> None:
    assert evaluate(expression) == value


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("1 / 0", "It divides by zero."),
        ("1 % 0", "It divides by zero."),
        ("1 // 0", "It divides by zero."),
        ("0 ** -1", "It has no value"),
        ("0 / 0", "It has no value"),
        ("sqrt(-1)", "It has no value"),
        ("ln(0)", "It has no value"),
        ("(-8) ** (1 / 3)", "It has no value"),
        ("asin(2)", "It has no value"),
        ("9 ** 9 ** 9 ** 9", "A number in it is larger than 10 to the power of 9999."),
        ("1e99999", "A number in it is larger"),
        ("exp(1e9)", "A number in it is larger"),
        ("round(1, 1e9)", "round takes at most 64 places."),
        ("", "A number is expected where the end stands."),
        ("1 +", "A number is expected where the end stands."),
        ("(1", "`)` is expected where the end stands."),
        ("1 2", "the end is expected where `2` stands."),
        ("1)", "the end is expected where `)` stands."),
        ("max()", "A number is expected where `)` stands."),
        ("sqrt(1, 2)", "sqrt does not take 2 numbers."),
        ("x", "There is no constant 'x'"),
        ("eval(1)", "There is no function 'eval'"),
        ("sqrt", "There is no constant 'sqrt'"),
        ("__import__('os')", "It cannot be read at character 12"),
        ("1 if 1 else 2", "the end is expected where `if` stands."),
        ("(1).real", "It cannot be read at character 4"),
        ("٣", "It cannot be read at character 1"),
        ("(" * 60 + "1" + ")" * 60, "More than 50 parentheses"),
        ("-" * 60 + "1", "More than 50 parentheses"),
        ("2**" * 60 + "1", "It has more than 32 functions and powers."),
        ("ln(2)+" * 33 + "1", "It has more than 32 functions and powers."),
        ("1" * 1001, "The expression is longer than 1000 characters."),
    ],
)
def test_problems(expression: str, reason: str) -> None:
    with pytest.raises(ArithmeticProblem) as caught:
        evaluate(expression)
    assert str(caught.value).startswith(reason)


@given(st.text(st.sampled_from("0123456789.eE+-*/%^(), abclnoqrstxp"), max_size=60))
def test_whatever_is_written_has_a_value_or_a_problem(expression: str) -> None:
    try:
        told = evaluate(expression)
    except ArithmeticProblem as problem:
        told = str(problem)
    assert 0 < len(told) < 250
