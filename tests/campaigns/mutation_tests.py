"""Which test files judge a module's mutants."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import cache, cached_property
from pathlib import Path

from tests.campaigns.mutmut_run import module_of
from tests.campaigns.record import REPOSITORY

LEFT_OUT = frozenset({"engines", "slow", "docker", "embedded", "vllm"})
"""Marks of tests that need what a copy of the repository lacks, or seconds of waiting."""
FOLDERS = ("tests/unit", "tests/properties")


class TestFiles:
    __test__ = False

    def __init__(self, repository: Path = REPOSITORY) -> None:
        self.repository = repository

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """By test file: the modules that it imports, and the names in them."""
        return {file: read_imports(self.repository / file) for folder in FOLDERS for file in self.list_files(folder)}

    def list_files(self, folder: str) -> list[str]:
        """The test files in a folder of the repository and below it, but for those that a mark leaves out."""
        found = sorted((self.repository / folder).rglob("test_*.py"))
        return [str(path.relative_to(self.repository)) for path in found if not read_marks(path) & LEFT_OUT]

    def choose(self, path: str, more: Sequence[str] = ()) -> list[str]:
        """The test files that judge one module, the nearest first: those that import it; those in the folder that
        mirrors the module's; those in the folders of `more`."""
        module = module_of(path)
        importing = [file for file, imported in self.imports.items() if module in imported]
        mirrors = [f"{folder}/{Path(path).parent}/" for folder in FOLDERS]
        mirroring = [file for file in self.imports if file.startswith(tuple(mirrors))]
        further = [file for folder in more for file in self.list_files(folder)]
        return list(dict.fromkeys([*importing, *mirroring, *further]))


def read_imports(path: Path) -> set[str]:
    """What a file imports, by full names: `from a.b import c` gives `a.b` and `a.b.c`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@cache  # by path: each is read for many modules
def read_marks(path: Path) -> set[str]:
    """The marks that a file gives to all of its tests."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            return {each.attr for each in ast.walk(node.value) if isinstance(each, ast.Attribute)}
    return set()
