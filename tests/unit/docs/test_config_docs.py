"""docs/models.md says what the code says."""

from __future__ import annotations

import pytest

from controller.engines import ENGINES
from controller.schema.desired import Definition
from tests.support.doc_tables import DOCS, backend_line, field_rows, load_rows, option_rows, rows_of


def test_common_fields() -> None:
    assert rows_of("models.md", "Common fields") == field_rows(Definition)


@pytest.mark.parametrize("name", ENGINES)
def test_fields_of_a_backend(name: str) -> None:
    assert rows_of("models.md", name) == option_rows(ENGINES[name].definition)
    assert backend_line(ENGINES[name]) in (DOCS / "models.md").read_text()


def test_fields_of_a_load() -> None:
    assert rows_of("models.md", "What a load may set") == load_rows()
