"""Public functions and methods are named with the verbs of CONTRIBUTING, and not with their synonyms."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.packages import PACKAGES

REPOSITORY = Path(__file__).parents[3]
VERBS = {"create", "read", "list", "find", "update", "delete", "start", "stop", "open", "close", "build", "parse"}
SYNONYMS = {
    "asked": "a noun, or `ask_...`",
    "construct": "build",
    "destroy": "delete",
    "discard": "delete",
    "drop": "delete",
    "edit": "update",
    "enumerate": "list",
    "erase": "delete",
    "finish": "close",
    "forget": "delete",
    "halt": "stop",
    "launch": "start",
    "modify": "update",
    "said": "a noun",
    "seek": "find",
    "tell": "send",
    "told": "a noun",
}
KNOWN = Path(__file__).with_name("known_verbs.txt")
"""The names of before this rule, one a line, as `module: name`. A name that goes leaves the file; none is added."""


def public_names(path: Path) -> Iterator[str]:
    """Each public function of a module, and each public method of its public classes."""

    def walk(body: Sequence[ast.stmt], prefix: str) -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield from walk(node.body, f"{node.name}.")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
                yield prefix + node.name

    yield from walk(ast.parse(path.read_text()).body, "")


def named_by_synonyms() -> list[str]:
    """Every public name whose verb is a synonym, as in `KNOWN`."""
    modules = sorted(path for program in PACKAGES for path in (REPOSITORY / program).rglob("*.py"))
    return [
        f"{path.relative_to(REPOSITORY)}: {name}"
        for path in modules
        for name in public_names(path)
        if name.rpartition(".")[2].partition("_")[0] in SYNONYMS
    ]


def test_no_new_name_has_a_synonym_for_one_of_the_verbs() -> None:
    found, known = named_by_synonyms(), KNOWN.read_text().splitlines()
    new = [
        f"{each}: say `{SYNONYMS[each.rpartition(' ')[2].rpartition('.')[2].partition('_')[0]]}`"
        for each in found
        if each not in known
    ]
    assert new == [], "CONTRIBUTING, Style, lists the verbs"
    assert sorted(set(known) - set(found)) == [], f"these are gone: take them out of {KNOWN.name}"


def test_contributing_lists_the_verbs() -> None:
    [line] = re.findall(r"One verb per act: (.*?)\.", (REPOSITORY / "CONTRIBUTING.md").read_text(), re.DOTALL)
    assert set(re.findall(r"`(\w+)`", line)) == VERBS
    assert VERBS.isdisjoint(SYNONYMS)
