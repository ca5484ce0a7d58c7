"""The fields that a live load may set: the constraint that a UI shows, and the check of a value.

A field is declared as an option (`Loadable`). Seed 001 makes the check wider or narrower than the constraint in places:
it shows four dtypes and accepts any, shows a choice and accepts null, shows steps and enforces one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from controller.schema.admin import LoadConstraint

LoadValue: TypeAlias = int | float | str | None


@dataclass(frozen=True, slots=True)
class LoadFault:
    """A value of a load's request that the model's backend cannot take. It is returned, not raised; the caller answers
    400 (`invalid_load_request`)."""

    field: str
    message: str
    """What is wrong, as the second half of a sentence that begins with the field's name."""


@dataclass(frozen=True, slots=True)
class LoadField:
    """One field that an operator's load may set: its name, the constraint that a UI shows, and the check of a value."""

    name: str
    description: str
    constraint: LoadConstraint
    nullable: bool = False
    """Whether null is accepted although the constraint's kind does not say so."""
    step_binds: bool = False
    """Whether a value between two steps is refused."""
    open_values: bool = False
    """Whether any text is accepted, whatever values are shown."""

    @property
    def takes_null(self) -> bool:
        """Whether a load may set the field to null (None)."""
        return self.nullable or self.constraint.kind.endswith("_or_null")

    def check_value(self, value: LoadValue) -> str | None:
        """Return why the value cannot be taken, as the second half of a sentence; None: it can.

        The value must have the type that the constraint's kind says, which is not checked: the request schema refuses
        others (422).
        """
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
    """Return the constraints by field name, in the order of `fields`, as `load_constraints` in the admin API's list of
    models has them."""
    return {field.name: field.constraint for field in fields}


def find_faults(fields: Iterable[LoadField], params: Mapping[str, Any]) -> list[LoadFault]:
    """Return the faults of a load's values, each value checked alone, in the order of `fields`. Names that no field has
    are ignored."""
    return [
        LoadFault(field.name, fault)
        for field in fields
        if field.name in params and (fault := field.check_value(params[field.name])) is not None
    ]
