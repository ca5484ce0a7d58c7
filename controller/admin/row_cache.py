"""Rows as JSON, quickly: what only an edit changes is written once.

Measured with 200 models: 14 ms of the controller's processor time for a list without this.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from controller.admin.rows import configured_row
from controller.schema.admin import ModelLive
from controller.schema.desired import Definition
from controller.state import DesiredModel


@dataclass(frozen=True, slots=True)
class _CachedRow:
    declared_definition: Definition
    definition: Definition
    json: bytes
    """Of the configured part, without its closing brace."""


class RowCache:
    """The part of each model's row that only an edit or a load changes, as JSON, so that it is made once per change."""

    def __init__(self) -> None:
        self._rows: dict[str, _CachedRow] = {}

    def row_json(self, want: DesiredModel, model: ModelLive) -> bytes:
        """A model's row: the JSON of an `AdminModel`, made of the cached part and of `model`."""
        cached_row = self._rows.get(want.name)
        if (
            cached_row is None
            or cached_row.declared_definition is not want.declared_definition
            or cached_row.definition != want.definition
        ):
            configured_json = configured_row(want).model_dump_json().encode()
            cached_row = self._rows[want.name] = _CachedRow(
                want.declared_definition, want.definition, configured_json[:-1]
            )
        return cached_row.json + b"," + model.model_dump_json().encode()[1:]

    def keep_only(self, names: Collection[str]) -> None:
        """Forget models that are no longer declared."""
        if len(self._rows) > len(names):
            self._rows = {name: cached_row for name, cached_row in self._rows.items() if name in names}
