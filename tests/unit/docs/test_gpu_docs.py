"""docs/gpu.md quotes messages that the code gives, and names every kind of step of the first hour."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.gpu.steps import STEPS
from tests.support.doc_tables import DOCS, rows_of

PAGE: Final = "gpu.md"
PACKAGES: Final = ("controller", "worker")
WHATEVER: Final = "\0"
"""In a text of the code: what a message fills in there."""
PLACEHOLDER: Final = "..."
"""In the page: what differs."""


def quoted_messages() -> list[str]:
    """The code spans of the first column of every table below the heading Traps."""
    traps = re.search(r"^## Traps\n(.*?)(?=^## )", (DOCS / PAGE).read_text(), re.MULTILINE | re.DOTALL)
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
    assert is_given(message), f"no text of {' or '.join(PACKAGES)} holds {message!r}: docs/{PAGE} is out of date"


def test_what_nobody_says_is_not_given() -> None:
    assert not is_given("this host has a GPU too many")
    assert not is_given("GPU ... is where it belongs")


def test_every_kind_of_step_is_in_the_table() -> None:
    kinds = dict.fromkeys(step.name.split(".")[0] for step in STEPS)
    rows = rows_of(PAGE, "The first hour")
    assert [re.match(r"\| `([\w-]+)` \|", row)[1] for row in rows] == [*kinds]  # type: ignore[index]


def test_the_page_is_linked_from_where_gpus_are_told_of() -> None:
    for page in ("docs/docker.md", "docs/testing.md", "README.md"):
        assert "gpu.md" in (Path(DOCS.parent) / page).read_text(), page
