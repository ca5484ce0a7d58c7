"""The tree: where a subject is found, how long a file may be, and which modules are held to be pure."""

from __future__ import annotations

import ast
import tomllib

import pytest

from tests.campaigns.campaign_rooms import SEARCHES, Search, find_first, list_files
from tests.campaigns.record import REPOSITORY

PACKAGES = ("common/", "controller/", "gateway/", "retrieval/", "worker/")
LONGEST = 800
"""Lines of a file."""


def sources() -> list[str]:
    return [name for name in list_files() if name.startswith(PACKAGES) and name.endswith(".py")]


def pure_modules() -> list[str]:
    """Modules and packages that a contract keeps pure."""
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    [pure] = [contract for contract in contracts if "pure" in contract["name"]]
    modules: list[str] = pure["source_modules"]
    return modules


@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: search.subject)
def test_a_subject_is_found_by_its_name_in_the_field(search: Search) -> None:
    assert find_first(search.words, list_files()) == search.file


def test_the_first_file_is_told() -> None:
    files = ["a/Circuit_Breaker.py", "b/circuit_breaker.py"]
    assert find_first("circuit", files) == files[0]
    assert find_first("eviction", files) is None


def test_no_file_is_longer_than_a_reader_takes() -> None:
    lengths = {name: (REPOSITORY / name).read_text().count("\n") for name in sources()}
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST} == {}


def test_a_module_that_says_it_is_pure_is_kept_pure() -> None:
    kept = tuple(f"{module.replace('.', '/')}{end}" for module in pure_modules() for end in (".py", "/"))
    said = [
        name for name in sources() if "Pure" in (ast.get_docstring(ast.parse((REPOSITORY / name).read_text())) or "")
    ]
    assert [name for name in said if not name.startswith(kept)] == []
    assert len(said) > 50, "the words of the docstrings are those that are looked for"
