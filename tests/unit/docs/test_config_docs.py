"""docs/models.md and docs/tools.md say what the code says."""

from __future__ import annotations

import re

import pytest

from controller.engines import ENGINES
from controller.schema.tools import FetchTool, FolderTool, McpServer, ToolLimits, WriteTool
from tests.support.config_files import problems_of
from tests.support.doc_tables import (
    DOCS,
    SAME_OPTIONS,
    backend_line,
    common_field_rows,
    field_rows,
    limit_rows,
    load_rows,
    option_rows,
    own_field_rows,
    rows_of,
    tool_rows,
)


def test_common_fields() -> None:
    assert rows_of("models.md", "Common fields") == common_field_rows()


def test_limits_of_requests() -> None:
    assert rows_of("models.md", "What a request may give") == limit_rows()


@pytest.mark.parametrize("name", ENGINES)
def test_fields_of_a_backend(name: str) -> None:
    rows = option_rows(ENGINES[name].definition)
    if name in SAME_OPTIONS:
        assert set(rows) <= set(option_rows(ENGINES[SAME_OPTIONS[name]].definition))
    else:
        assert rows_of("models.md", name) == rows
    assert backend_line(ENGINES[name]) in (DOCS / "models.md").read_text()


def test_tools_and_their_fields() -> None:
    assert rows_of("tools.md", "Fields of every tool and server") == field_rows(ToolLimits)
    assert rows_of("tools.md", "Built-in tools") == tool_rows()
    assert rows_of("tools.md", "Fields of built-in tools") == own_field_rows(FetchTool, FolderTool, WriteTool)
    assert rows_of("tools.md", "MCP servers") == own_field_rows(McpServer)


def test_the_examples_of_tools_are_valid() -> None:
    examples = re.findall(r"```yaml\n(.*?)```", (DOCS / "tools.md").read_text(), re.DOTALL)
    assert len(examples) > 1
    for example in examples:
        assert problems_of(f"models: {{}}\n{example}") == [], example


def test_fields_of_a_load() -> None:
    assert rows_of("models.md", "What a load may set") == load_rows()
