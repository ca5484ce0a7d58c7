"""Arithmetic of bounded cost: a parser of expressions, and numbers of bounded precision. Pure.

Numbers are decimal (so 0.1 + 0.2 is 0.3), with `PRECISION` digits and exponents up to `LARGEST_EXPONENT`; whole numbers
are exact up to `WHOLE_DIGITS`, so that remainders are right. So each operation takes bounded time; the length of an
expression bounds the number of operations: some milliseconds in all.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Mapping
from decimal import (
    ROUND_CEILING,
    ROUND_FLOOR,
    ROUND_HALF_EVEN,
    Context,
    Decimal,
    DecimalException,
    DivisionByZero,
    Inexact,
    InvalidOperation,
    Overflow,
)
from functools import partial
from typing import Final

LONGEST_EXPRESSION: Final = 1000
"""Characters."""
DEEPEST: Final = 50
"""Parentheses, signs and powers within each other."""
MOST_FUNCTIONS: Final = 32
"""Functions and powers, which take longest."""
PRECISION: Final = 64
"""Digits of every number that is not whole."""
WHOLE_DIGITS: Final = LONGEST_EXPRESSION
"""Digits of a whole number that is exact; one with more has `PRECISION` digits."""
SHOWN_INTEGER_DIGITS: Final = 60
"""Digits of a whole number that is shown in full."""
SHOWN_DIGITS: Final = 20
"""Digits of any other result."""
LARGEST_EXPONENT: Final = 9999
_NO_VALUE: Final = "It has no value, such as the root of a negative number."

_CONTEXT: Final = Context(
    prec=PRECISION,
    rounding=ROUND_HALF_EVEN,
    Emin=-LARGEST_EXPONENT,
    Emax=LARGEST_EXPONENT,
    traps=[InvalidOperation, DivisionByZero, Overflow],
)
_WHOLE_CONTEXT: Final = Context(
    prec=WHOLE_DIGITS,
    rounding=ROUND_HALF_EVEN,
    Emin=-LARGEST_EXPONENT,
    Emax=LARGEST_EXPONENT,
    traps=[InvalidOperation, DivisionByZero, Overflow, Inexact],
)
"""For whole numbers."""
_DIVISION_CONTEXT: Final = Context(
    prec=2 * (LARGEST_EXPONENT + PRECISION),
    rounding=ROUND_HALF_EVEN,
    Emin=-3 * LARGEST_EXPONENT,
    Emax=3 * LARGEST_EXPONENT,
    traps=[InvalidOperation, DivisionByZero, Overflow],
)
"""For whole quotients and remainders: exact."""
_FUNCTION_CONTEXT: Final = Context(
    prec=34,  # as many as decimal128 has, and more than are shown
    rounding=ROUND_HALF_EVEN,
    Emin=-LARGEST_EXPONENT,
    Emax=LARGEST_EXPONENT,
    traps=[InvalidOperation, DivisionByZero, Overflow],
)
"""For functions and powers that are not whole, which take long with more digits."""
_LOG_CONTEXT: Final = Context(prec=30, rounding=ROUND_HALF_EVEN, Emin=-LARGEST_EXPONENT, Emax=LARGEST_EXPONENT)
"""For a quotient of logarithms, whose last digits are wrong: log(125, 5) is 3, and not a little less."""
_TOKEN: Final = re.compile(
    r"\s*(?:(?P<number>(?:\d+(?:_\d+)*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,5})?)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<sign>\*\*|//|[-+*/%^(),\u00d7\u00f7\u2212\u00b7]))",
    re.ASCII,
)
_SIGNS: Final[Mapping[str, str]] = {"^": "**", "\u00d7": "*", "\u00b7": "*", "\u00f7": "/", "\u2212": "-"}
"""Other signs, those of typography among them, and what they mean."""
_CONSTANTS: Final[Mapping[str, Decimal]] = {
    "pi": Decimal("3.141592653589793238462643383279502884197169399375105820974944592"),
    "e": Decimal("2.718281828459045235360287471352662497757247093699959574966967628"),
}


class ArithmeticProblem(Exception):  # noqa: N818 - it is a problem of the expression, which is told to the model
    """The expression has no value. The text says why, in words for the model that wrote it."""


def evaluate(expression: str) -> str:
    """Return the value of an arithmetic expression as text.

    `+ - * / // %`, powers (`**` or `^`), parentheses, `pi`, `e`, and the functions of `_FUNCTIONS`; angles are in
    radians; `//` rounds down, and `%` has the divisor's sign. A whole number is exact up to `WHOLE_DIGITS`, and is
    shown in full where it has at most `SHOWN_INTEGER_DIGITS` digits; any other value is rounded to `SHOWN_DIGITS`
    digits, with an exponent (`1E+30`) where it is very large or small. It takes some milliseconds at most.

    Raises:
        ArithmeticProblem: it cannot be read, is too long or too deep, has too many functions, divides by zero, or has
            no value, or one that is too large.
    """
    if len(expression) > LONGEST_EXPRESSION:
        raise ArithmeticProblem(f"The expression is longer than {LONGEST_EXPRESSION} characters.")
    try:
        value = _Parser(_split(expression)).parse()
    except DivisionByZero:
        raise ArithmeticProblem("It divides by zero.") from None
    except Overflow:
        raise ArithmeticProblem(f"A number in it is larger than 10 to the power of {LARGEST_EXPONENT}.") from None
    except (DecimalException, ValueError, OverflowError):
        raise ArithmeticProblem(_NO_VALUE) from None
    if not value.is_finite():
        raise ArithmeticProblem(_NO_VALUE)
    return _show(value)


def _split(expression: str) -> list[tuple[str, str]]:
    """Return kind (`number`, `name`, `sign`) and text of each token, and an `end`."""
    tokens, position, text = [], 0, expression.rstrip()
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None or found.lastgroup is None:
            rest = text[position : position + 20]
            raise ArithmeticProblem(f"It cannot be read at character {position + 1}: {rest!r}.")
        token = found[found.lastgroup]
        tokens.append((found.lastgroup, _SIGNS.get(token, token)))
        position = found.end()
    return [*tokens, ("end", "")]


class _Parser:
    """Recursive descent, which evaluates as it reads."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._position = 0
        self._depth = 0
        self._functions = 0

    def parse(self) -> Decimal:
        value = self._read_sum()
        self._expect("")
        return value

    def _peek(self) -> str:
        return self._tokens[self._position][1]

    def _take(self) -> tuple[str, str]:
        token = self._tokens[self._position]
        self._position += 1
        return token

    def _expect(self, sign: str) -> None:
        kind, text = self._tokens[self._position]
        if text != sign or (not sign and kind != "end"):
            raise ArithmeticProblem(f"{_name(sign)} is expected where {_name(text)} stands.")
        self._position += 1 if sign else 0

    def _read_sum(self) -> Decimal:
        value = self._read_product()
        while (sign := self._peek()) in ("+", "-"):
            self._take()
            term = self._read_product()
            value = _compute(Context.add if sign == "+" else Context.subtract, value, term)
        return value

    def _read_product(self) -> Decimal:
        value = self._read_signed()
        while (sign := self._peek()) in _PRODUCTS:
            self._take()
            value = _PRODUCTS[sign](value, self._read_signed())
        return value

    def _read_signed(self) -> Decimal:
        self._go_deeper()
        if self._peek() in ("+", "-"):
            _, sign = self._take()
            value = self._read_signed()
            value = value.copy_negate() if sign == "-" else value
        else:
            value = self._read_power()
        self._depth -= 1
        return value

    def _read_power(self) -> Decimal:
        base = self._read_atom()
        if self._peek() != "**":
            return base
        self._take()
        self._count_function()
        # The right one first: 2**3**2 is 2**9. A sign may stand there: 2**-1.
        exponent = self._read_signed()
        if abs(exponent) > LARGEST_EXPONENT or not _is_whole(exponent):
            return _FUNCTION_CONTEXT.power(_CONTEXT.plus(base), exponent)
        return _compute(Context.power, base, exponent) if exponent > 0 else _CONTEXT.power(base, exponent)

    def _read_atom(self) -> Decimal:
        kind, text = self._take()
        if kind == "number":
            digits = text.replace("_", "")
            try:
                number = _WHOLE_CONTEXT.create_decimal(digits)
            except Inexact:  # it has more digits, or is too small to be told from 0
                return _CONTEXT.create_decimal(digits)
            return number if _is_whole(number) else _CONTEXT.plus(number)
        if kind == "name":
            return self._read_named(text)
        if text != "(":
            raise ArithmeticProblem(f"A number is expected where {_name(text)} stands.")
        value = self._read_sum()
        self._expect(")")
        return value

    def _read_named(self, name: str) -> Decimal:
        if self._peek() != "(":
            if name not in _CONSTANTS:
                raise ArithmeticProblem(f"There is no constant {name[:30]!r}; there are {', '.join(_CONSTANTS)}.")
            return _CONSTANTS[name]
        if name not in _FUNCTIONS:
            raise ArithmeticProblem(f"There is no function {name[:30]!r}; there are {', '.join(sorted(_FUNCTIONS))}.")
        self._take()
        self._count_function()
        arguments = [self._read_sum()]
        while self._peek() == ",":
            self._take()
            arguments.append(self._read_sum())
        self._expect(")")
        (fewest, most), function = _FUNCTIONS[name]
        if not fewest <= len(arguments) <= most:
            raise ArithmeticProblem(f"{name} does not take {len(arguments)} numbers.")
        return function(*arguments)

    def _count_function(self) -> None:
        self._functions += 1
        if self._functions > MOST_FUNCTIONS:
            raise ArithmeticProblem(f"It has more than {MOST_FUNCTIONS} functions and powers.")

    def _go_deeper(self) -> None:
        self._depth += 1
        if self._depth > DEEPEST:
            raise ArithmeticProblem(f"More than {DEEPEST} parentheses, signs or powers stand within each other.")


def _name(token: str) -> str:
    return f"`{token[:30]}`" if token else "the end"


def _is_whole(value: Decimal) -> bool:
    return value == value.to_integral_value()


def _compute(operation: Callable[[Context, Decimal, Decimal], Decimal], left: Decimal, right: Decimal) -> Decimal:
    """A sum, difference, product or power, which is exact for whole numbers up to `WHOLE_DIGITS`."""
    if _is_whole(left) and _is_whole(right):
        with contextlib.suppress(Inexact):
            return operation(_WHOLE_CONTEXT, left, right)
    return operation(_CONTEXT, left, right)


def _divide(left: Decimal, right: Decimal) -> Decimal:
    if right and _is_whole(left) and _is_whole(right) and max(left.adjusted(), right.adjusted()) < WHOLE_DIGITS:
        quotient, remainder = _DIVISION_CONTEXT.divmod(left, right)
        if not remainder:
            return quotient
    return _CONTEXT.divide(left, right)


def _divide_down(left: Decimal, right: Decimal) -> tuple[Decimal, Decimal]:
    """The quotient, rounded down, and the remainder with the sign of the divisor."""
    if not right:
        raise DivisionByZero
    if max(left.adjusted(), right.adjusted()) >= WHOLE_DIGITS:  # its last digits may be unknown
        raise ArithmeticProblem(f"`//` and `%` take numbers of at most {WHOLE_DIGITS} digits.")
    quotient, remainder = _DIVISION_CONTEXT.divmod(left, right)
    if remainder and (remainder < 0) != (right < 0):
        quotient, remainder = _DIVISION_CONTEXT.subtract(quotient, 1), _DIVISION_CONTEXT.add(remainder, right)
    return quotient, remainder if _is_whole(remainder) else _CONTEXT.plus(remainder)


def _floor_divide(left: Decimal, right: Decimal) -> Decimal:
    quotient, _ = _divide_down(left, right)
    return quotient if quotient.adjusted() < WHOLE_DIGITS else _CONTEXT.plus(quotient)


def _round(value: Decimal, digits: Decimal | None = None) -> Decimal:
    places = 0 if digits is None else int(digits)
    if abs(places) > PRECISION:
        raise ArithmeticProblem(f"round takes at most {PRECISION} places.")
    exponent = value.as_tuple().exponent
    if isinstance(exponent, int) and exponent >= -places:
        return value  # it has no such places, and may be too large to be written with them
    return value.quantize(Decimal(1).scaleb(-places), ROUND_HALF_EVEN, _DIVISION_CONTEXT)


def _log(value: Decimal, base: Decimal | None = None) -> Decimal:
    if base is None:
        return _FUNCTION_CONTEXT.ln(_CONTEXT.plus(value))
    quotient = _FUNCTION_CONTEXT.divide(_log(value), _log(base))
    return _LOG_CONTEXT.plus(quotient)


def _by_float(function: Callable[[float], float]) -> Callable[..., Decimal]:
    """A function that the decimal module lacks: 15 digits, so that the sine of pi is 0."""

    def apply(value: Decimal) -> Decimal:
        result = function(float(value))
        return Decimal(f"{result:.15g}") if abs(result) >= 1e-15 else Decimal(0)

    return apply


_PRODUCTS: Final[Mapping[str, Callable[[Decimal, Decimal], Decimal]]] = {
    "*": partial(_compute, Context.multiply),
    "/": _divide,
    "//": _floor_divide,
    "%": lambda left, right: _divide_down(left, right)[1],
}
_FUNCTIONS: Final[Mapping[str, tuple[tuple[int, int], Callable[..., Decimal]]]] = {
    "abs": ((1, 1), Decimal.copy_abs),
    "acos": ((1, 1), _by_float(math.acos)),
    "asin": ((1, 1), _by_float(math.asin)),
    "atan": ((1, 1), _by_float(math.atan)),
    "ceil": ((1, 1), lambda value: value.to_integral_value(ROUND_CEILING)),
    "cos": ((1, 1), _by_float(math.cos)),
    "exp": ((1, 1), lambda value: _FUNCTION_CONTEXT.exp(_CONTEXT.plus(value))),
    "floor": ((1, 1), lambda value: value.to_integral_value(ROUND_FLOOR)),
    "ln": ((1, 1), _log),
    "log": ((1, 2), _log),
    "log10": ((1, 1), lambda value: _FUNCTION_CONTEXT.log10(_CONTEXT.plus(value))),
    "max": ((1, LONGEST_EXPRESSION), max),
    "min": ((1, LONGEST_EXPRESSION), min),
    "round": ((1, 2), _round),
    "sin": ((1, 1), _by_float(math.sin)),
    "sqrt": ((1, 1), _CONTEXT.sqrt),
    "tan": ((1, 1), _by_float(math.tan)),
}
"""Fewest and most arguments, and the function."""


def _show(value: Decimal) -> str:
    if not value:
        return "0"
    if value == value.to_integral_value() and value.adjusted() < SHOWN_INTEGER_DIGITS:
        return f"{value:f}".partition(".")[0]
    shown = Context(prec=SHOWN_DIGITS, Emin=-LARGEST_EXPONENT, Emax=LARGEST_EXPONENT).plus(value).normalize()
    return f"{shown:f}" if -10 <= shown.adjusted() < SHOWN_DIGITS else str(shown)
