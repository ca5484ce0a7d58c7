"""The tools, their handlers and their page are the same ones."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.mcp_server.handlers import HANDLERS
from gateway.mcp_server.tools import TOOLS, Tool
from tests.support.doc_tables import row, rows_of


def test_each_tool_has_one_handler() -> None:
    assert [tool.name for tool in TOOLS] == list(HANDLERS)


def test_the_page_has_each_tool_with_its_scope_and_annotations() -> None:
    assert rows_of("mcp.md", "Tools") == [row(*_cells(tool)) for tool in TOOLS]


def _cells(tool: Tool) -> tuple[str, ...]:
    changes = "nothing" if tool.is_read_only else "destructive" if tool.is_destructive else "additive"
    world = "open" if tool.is_open_world else "closed"
    fields = tool.build_schema()["properties"]
    arguments = ", ".join(f"`{name}`" for name in fields)
    assert tool.is_idempotent, "the page has no column for it"
    return f"`{tool.name}`", f"`{tool.scope}`", changes, world, arguments, tool.description


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_schemas_explain_each_argument(tool: Tool) -> None:
    schema = tool.build_schema()
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    properties: dict[str, dict[str, Any]] = schema["properties"]
    for name, field in properties.items():
        assert field["description"].endswith("."), name
        assert "title" not in field


def test_tools_of_the_scope_inference_change_nothing() -> None:
    assert all(tool.is_read_only for tool in TOOLS if tool.scope == "inference")
    assert not any(tool.is_destructive and tool.is_read_only for tool in TOOLS)
