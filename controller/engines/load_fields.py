"""What a live load may set: one declaration per field, which both the UI's constraint and the API's check come from.

What a check does beyond the constraint, or short of it, is declared here too: seed 001 shows four dtypes and accepts
any, shows an enum and accepts null, shows steps and binds one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from controller.schema.admin import LoadConstraint

LoadValue: TypeAlias = int | float | str | None


@dataclass(frozen=True, slots=True)
class LoadFault:
    """A value that a load cannot take: which field, and why, as the second half of a sentence about the field."""

    field: str
    message: str


@dataclass(frozen=True, slots=True)
class LoadField:
    """One field of a load. `check` assumes the type that `kind` says: that is the request schema's part (422)."""

    name: str
    description: str
    constraint: LoadConstraint
    nullable: bool = False
    """Null is taken though the kind does not say so."""
    step_binds: bool = False
    """A value between steps is refused."""
    open_values: bool = False
    """Any text is taken, whatever values are shown."""

    @property
    def takes_null(self) -> bool:
        """Whether null is a value of the field."""
        return self.nullable or self.constraint.kind.endswith("_or_null")

    def check_value(self, value: LoadValue) -> str | None:
        """Why the value cannot be taken; None: it can."""
        if value is None:
            return None if self.takes_null else "takes no null"
        limits = self.constraint
        if isinstance(value, str):
            return self._check_text(value)
        if limits.minimum is not None and value < limits.minimum:
            return f"must be at least {limits.minimum}, is {value}"
        if limits.maximum is not None and value > limits.maximum:
            return f"must be at most {limits.maximum}, is {value}"
        if self.step_binds and limits.step is not None and value % limits.step:
            return f"must be a multiple of {limits.step}, is {value}"
        return None

    def _check_text(self, value: str) -> str | None:
        if not value or not value.isprintable():
            return "must be a printable text that is not empty"
        allowed_values = self.constraint.allowed_values
        if allowed_values is None or self.open_values or value in allowed_values:
            return None
        null = ", or null" if self.takes_null else ""
        return f"must be one of {', '.join(str(each) for each in allowed_values)}{null}; is `{value:.60}`"


def list_constraints(fields: Iterable[LoadField]) -> dict[str, LoadConstraint]:
    """As `load_constraints` shows them."""
    return {field.name: field.constraint for field in fields}


def find_faults(fields: Iterable[LoadField], params: Mapping[str, Any]) -> list[LoadFault]:
    """What is wrong with the values of known fields, each by itself."""
    return [
        LoadFault(field.name, fault)
        for field in fields
        if field.name in params and (fault := field.check_value(params[field.name])) is not None
    ]
