"""What the compiled files of the gateway must not do, because mypyc makes something else of it without a word."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator

from tests.support.ci_cache import REPOSITORY

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
HOOK = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["mypyc"]
FILES = sorted(path for pattern in HOOK["include"] for path in REPOSITORY.glob(pattern.removeprefix("/")))
FILES = [path for path in FILES if path.name != "__init__.py"]


def list_faults(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from list_reused_names(node)
            case ast.Call(func=ast.Name(id="vars")) | ast.Attribute(attr="__dict__"):
                yield f"{node.lineno}: an object has no __dict__"
            case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="super"))), args=[ast.Starred(), *_]):
                yield f"{node.lineno}: a call of super() cannot begin with *arguments"


def list_reused_names(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """A variable has one type in a function, which is checked: `except A as error` makes `except B as error` fail."""
    types: dict[str, str] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.ExceptHandler) and node.name is not None and node.type is not None:
            caught = ast.unparse(node.type)
            if types.setdefault(node.name, caught) != caught:
                yield f"{node.lineno}: `{node.name}` is {types[node.name]} and {caught}"


def test_the_pattern_names_files_that_there_are() -> None:
    assert len(FILES) > 40
    assert all(list(REPOSITORY.glob(pattern.removeprefix("/"))) for pattern in HOOK["include"])


def test_compiled_files_do_nothing_that_compiled_code_does_otherwise() -> None:
    found = [f"{path.relative_to(REPOSITORY)}:{fault}" for path in FILES for fault in list_faults(path.read_text())]
    assert found == []


def test_what_they_must_not_do_is_found() -> None:
    faults = """
class A(B):
    def run(self):
        try:
            super().run(*self.parts, 1)
            vars(self)
        except KeyError as error:
            raise error
        except ValueError as error:
            raise error
"""
    assert [fault.split(":")[0] for fault in list_faults(faults)] == ["9", "5", "6"]
