"""`calculate`: the value of an arithmetic expression."""

from __future__ import annotations

from typing import Final

from gateway.tools.builtin.arithmetic import LONGEST_EXPRESSION, ArithmeticProblem, evaluate
from gateway.tools.spec import ToolCall, ToolResult, ToolSpec

SPEC: Final = ToolSpec(
    name="calculate",
    display_name="Calculate",
    description="Evaluates an arithmetic expression exactly. Operators: + - * / // % ** and parentheses. Constants: "
    "pi, e. Functions: abs, ceil, floor, round, min, max, sqrt, exp, ln, log (with a base), log10, sin, cos, tan, "
    "asin, acos, atan, in radians.",
    parameters={
        "type": "object",
        "properties": {
            "expression": {
                "type": "string",
                "minLength": 1,
                "maxLength": LONGEST_EXPRESSION,
                "description": "Such as (3 + 4) * 2 ** 10 / 7.",
            }
        },
        "required": ["expression"],
        "additionalProperties": False,
    },
    writes=False,
    server=None,
)


class Calculate:
    """Evaluates within the event loop: an expression takes some milliseconds at most."""

    spec = SPEC

    async def run(self, call: ToolCall) -> ToolResult:
        """Return the value of the argument `expression`; a result with `is_error` says what is wrong with it."""
        try:
            return ToolResult(evaluate(call.arguments["expression"]))
        except ArithmeticProblem as problem:
            return ToolResult(str(problem), is_error=True)
