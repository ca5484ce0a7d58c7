"""Nobody judges a request by `request.url`: Starlette puts it together of the Host header and the path, and takes it
apart again, so that a client may write into it. Linters do not see attributes; the path is `scope["path"]`."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.campaigns.record import REPOSITORY

PROGRAMS = ("common", "controller", "gateway", "retrieval", "transfers/api", "worker")
"""What clients ask; the rest of `transfers` has requests of its own."""
OUTGOING = REPOSITORY / "common" / "network"
"""Sends requests, and gets none."""
MADE_OF_THE_HOST = ("url", "base_url", "url_for")
"""Attributes of a request that Starlette makes of the Host header."""
REQUESTS = ("Request", "HTTPConnection", "WebSocket")


def find_uses(source: str) -> list[int]:
    """Lines in which something is read from a request that was made of its Host header."""
    tree = ast.parse(source)
    names = {
        argument.arg
        for argument in ast.walk(tree)
        if isinstance(argument, ast.arg) and argument.annotation is not None and _is_request(argument.annotation)
    }
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.expr))
    return sorted(node.lineno for node in nodes if _is_use(node, names))


def _is_request(annotation: ast.expr) -> bool:
    words = ast.unparse(annotation).strip("'\"").replace("|", " ").split()
    return any(word.rpartition(".")[2] in REQUESTS for word in words)


def _is_use(node: ast.expr, request_names: set[str]) -> bool:
    if isinstance(node, ast.Call):
        return _last_name(node.func) == "URL" and any(keyword.arg == "scope" for keyword in node.keywords)
    if not isinstance(node, ast.Attribute) or node.attr not in MADE_OF_THE_HOST:
        return False
    if isinstance(node.value, ast.Call):
        return _last_name(node.value.func) in REQUESTS
    owner = _last_name(node.value)
    return owner in request_names or owner.lstrip("_") == "request"


def _last_name(expression: ast.expr) -> str:
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_program_reads_a_requests_url(program: str) -> None:
    files = [file for file in sorted((REPOSITORY / program).rglob("*.py")) if OUTGOING not in file.parents]
    assert files
    uses = {_name_of(file): lines for file in files if (lines := find_uses(file.read_text()))}
    assert uses == {}


def _name_of(file: Path) -> str:
    return str(file.relative_to(REPOSITORY))


@pytest.mark.parametrize(
    "source",
    [
        "def f(request): return request.url.path",
        "def f(asked: Request): return asked.url.path",
        "def f(asked: 'Request | None'): return asked.base_url",
        "def f(asked: starlette.requests.HTTPConnection): return asked.url_for('x')",
        "async def f(self): return self.request.url",
        "async def f(self): return self._request.url",
        "async def f(scope): return Request(scope).url.path",
        "async def f(scope): return URL(scope=scope).path",
        "async def f(scope): return datastructures.URL(scope=scope).path",
    ],
)
def test_a_use_is_found(source: str) -> None:
    assert find_uses(f"import x\n\n{source}\n") == [3]


@pytest.mark.parametrize(
    "source",
    [
        "def f(request): return request.scope['path']",
        "def f(engine: Engine): return engine.url + self._address.url",
        "def f(request_part): return request_part.url",
        "def f(text): return URL(text)",
    ],
)
def test_other_urls_are_none(source: str) -> None:
    assert find_uses(source) == []
