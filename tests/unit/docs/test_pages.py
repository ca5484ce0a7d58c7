"""Pages that say what the code says: README.md, docs/models.md, docs/tools.md, docs/metrics.md and docs/gpu.md."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import typer.main

from cli.app import app
from contract.errors import ERROR_CODES
from contract.tools import FetchTool, FolderTool, McpServer, ToolLimits, WriteTool
from controller.engines import ENGINES
from tests.gpu.steps import STEPS
from tests.support.definitions import problems_of
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

ROOT = Path(__file__).parents[3]
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
MOST_LINES = 140


def test_the_readme_stays_short() -> None:
    """What is listed whole (settings, error codes) stands in docs/settings.md and docs/errors.md."""
    text = README.read_text()
    assert len(text.splitlines()) <= MOST_LINES
    assert [code for code in ERROR_CODES if f"| `{code}` |" in text] == []
    assert re.findall(r"^\| `ROUNDHOUSE_\w+` \|", text, re.MULTILINE) == []
    assert {"docs/settings.md", "docs/errors.md", "docs/map.md"} <= set(re.findall(r"\]\(([^)#]+)", text))


def test_the_readme_shows_the_page_and_a_dashboard() -> None:
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", README.read_text())
    assert [Path(each).parent.name for each in pictures] == ["page", "dashboards"]


def test_the_commands_of_the_readme_exist() -> None:
    text = README.read_text()
    targets = set(re.findall(r"^([\w./-]+):.*", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:\$ |`)make ((?:models/)?[a-z][\w.-]+)", text)) <= targets
    named = set(re.findall(r"(?:\$ |`)roundhouse ([a-z]+)", text))
    commands = typer.main.get_group(app).commands
    assert named <= set(commands)
    assert len(named) > 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_common_fields_are_documented() -> None:
    assert rows_of("models.md", "Common fields") == common_field_rows()


def test_limits_of_requests_are_documented() -> None:
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


REFERENCE = ROOT / "docs" / "metrics.md"
NAME = re.compile(r"(?<![:\w])(?:roundhouse_(?:gateway|controller|model|gpu|hosts?|retrieval|engine)|localllm)_\w+")
UNUSED: dict[str, str] = {}
"""Metrics that no panel, rule or other page uses, and why they are there all the same."""


def documented_metrics() -> set[str]:
    """Names with a row of their own in docs/metrics.md."""
    return set(re.findall(r"^\| `((?:roundhouse|localllm)_\w+)` \|", REFERENCE.read_text(), re.MULTILINE))


def used_metrics() -> set[str]:
    """Names in panels, rules and pages of docs/, and in docs/metrics.md outside of the rows that describe metrics.

    Names of histograms' series also without their suffix.
    """
    texts = [path.read_text() for path in (ROOT / "grafana").rglob("*") if path.suffix in (".json", ".yaml")]
    texts += [path.read_text() for path in (ROOT / "docs").rglob("*.md") if path != REFERENCE]
    texts.append("\n".join(line for line in REFERENCE.read_text().splitlines() if not line.startswith("| `")))
    names = {name for text in texts for name in NAME.findall(text)}
    return names | {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}


def test_each_metric_is_used_or_says_why_not() -> None:
    unused = {name for name in documented_metrics() - used_metrics() if not name.startswith("localllm_")}
    assert unused - UNUSED.keys() == set(), "use it in a panel, a rule or a page, or say in UNUSED why it is there"


def test_an_excuse_is_of_a_metric() -> None:
    assert UNUSED.keys() <= documented_metrics(), "these are no metrics any more"


def test_no_metric_is_used_that_does_not_exist() -> None:
    known = documented_metrics()
    texts = [path.read_text() for path in (ROOT / "grafana").rglob("*") if path.suffix in (".json", ".yaml")]
    used = {re.sub(r"_(bucket|sum|count)$", "", name) for text in texts for name in NAME.findall(text)}
    assert used
    assert used <= known | {re.sub(r"_(bucket|sum|count)$", "", name) for name in known}


GPU_PAGE: Final = "gpu.md"
PACKAGES: Final = ("controller", "worker")
WHATEVER: Final = "\0"
"""In a text of the code: what a message fills in there."""
PLACEHOLDER: Final = "..."
"""In the page: what differs."""


def quoted_messages() -> list[str]:
    """The code spans of the first column of every table below the heading Traps."""
    traps = re.search(r"^## Traps\n(.*?)(?=^## )", (DOCS / GPU_PAGE).read_text(), re.MULTILINE | re.DOTALL)
    assert traps is not None
    rows = [line for line in traps[1].splitlines() if line.startswith("| `")]
    return [message for row in rows for message in re.findall(r"`([^`]+)`", row.split(" | ")[0])]


@functools.cache
def texts_of_the_code() -> tuple[str, ...]:
    """Every text in the sources but docstrings, with what is filled in as WHATEVER."""
    files = [path for package in PACKAGES for path in (DOCS.parent / package).rglob("*.py")]
    return tuple(text for path in files for text in _texts_in(ast.parse(path.read_text())))


def _texts_in(tree: ast.Module) -> Iterator[str]:
    said_to_readers = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if _is_text(part) else WHATEVER for part in node.values)  # type: ignore[attr-defined]
        elif _is_text(node) and id(node) not in said_to_readers:
            yield re.sub(r"\{\w*\}", WHATEVER, node.value)  # type: ignore[attr-defined]


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def is_given(message: str) -> bool:
    """Whether a text of the code holds the message."""
    pattern = re.compile(".*".join(re.escape(part) for part in message.split(PLACEHOLDER)), re.DOTALL)
    return any(pattern.search(text) for text in texts_of_the_code())


@pytest.mark.parametrize("message", quoted_messages())
def test_a_quoted_message_is_one_that_the_code_gives(message: str) -> None:
    assert len(message.replace(PLACEHOLDER, "").split()) > 1, "a word alone is anywhere"
    assert is_given(message), f"no text of {' or '.join(PACKAGES)} holds {message!r}: docs/{GPU_PAGE} is out of date"


def test_what_nobody_says_is_not_given() -> None:
    assert not is_given("this host has a GPU too many")
    assert not is_given("GPU ... is where it belongs")


def test_every_kind_of_step_is_in_the_table() -> None:
    kinds = dict.fromkeys(step.name.split(".")[0] for step in STEPS)
    rows = rows_of(GPU_PAGE, "The first hour")
    assert [re.match(r"\| `([\w-]+)` \|", row)[1] for row in rows] == [*kinds]  # type: ignore[index]


def test_the_page_is_linked_from_where_gpus_are_told_of() -> None:
    for page in ("docs/docker.md", "docs/testing.md", "README.md"):
        assert "gpu.md" in (Path(DOCS.parent) / page).read_text(), page
