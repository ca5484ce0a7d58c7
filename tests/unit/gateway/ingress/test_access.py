"""Who may use a route, and at which address: a table of what is refused with which code."""

from __future__ import annotations

import ast
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.routing import Mount, Route

from contract.errors import RoundhouseError
from contract.keys import Key
from gateway.exchange.client_response import ResponseHeaders
from gateway.ingress.access_rules import AdminGate, Cors, parse_address
from gateway.ingress.middleware import RouteAccess, UndeclaredRouteError, require_access, respell_request
from gateway.server.asgi import Header
from gateway.tenancy.api_keys import ANONYMOUS, Caller
from tests.campaigns.record import REPOSITORY


def caller(*scopes: Any) -> Caller:
    return Caller.of(Key(name="k", tenant="t", sha256=sha256(b"s").hexdigest(), scopes=scopes))


USER, BOSS = caller("inference"), caller("admin")
OPEN, CLOSED = AdminGate(None, is_open=True), AdminGate(None, is_open=False)
MEANT = AdminGate(["10.0.0.1", "::1"], is_open=True)


def verdict(gate: AdminGate, who: Caller, scope: Any, local_address: str | None = "10.0.0.9") -> str:
    try:
        gate.authorize_request(who, scope, local_address)
    except RoundhouseError as error:
        return error.entry.code
    return "accepted"


@pytest.mark.parametrize("gate", [OPEN, CLOSED])
def test_with_keys_scopes_rule(gate: AdminGate) -> None:
    assert verdict(gate, USER, "inference") == verdict(gate, BOSS, "admin") == "accepted"
    assert verdict(gate, USER, "admin") == verdict(gate, BOSS, "inference") == "scope_required"


@pytest.mark.parametrize(
    ("gate", "who", "scope", "local_address", "answer"),
    [
        (OPEN, ANONYMOUS, "admin", "10.0.0.9", "accepted"),
        (CLOSED, ANONYMOUS, "admin", "10.0.0.9", "admin_closed"),
        (CLOSED, ANONYMOUS, "inference", "10.0.0.9", "accepted"),
        (MEANT, USER, "inference", "10.0.0.2", "accepted"),
        (MEANT, ANONYMOUS, "inference", None, "accepted"),
        # What is no address is never one that is meant.
        *((AdminGate(["gateway.egress"], is_open=True), BOSS, "admin", address, "admin_not_here")
          for address in ("gateway.egress", "", None, "10.0.0.1")),
        (AdminGate([], is_open=True), BOSS, "admin", "10.0.0.1", "admin_not_here"),
        # Whoever is refused is told the first thing first.
        (AdminGate([], is_open=False), USER, "admin", "10.0.0.9", "scope_required"),
        (AdminGate([], is_open=False), ANONYMOUS, "admin", "10.0.0.9", "admin_closed"),
        (AdminGate([], is_open=False), BOSS, "admin", "10.0.0.9", "admin_not_here"),
    ],
)  # fmt: skip
def test_who_may_do_what_where(
    gate: AdminGate, who: Caller, scope: Any, local_address: str | None, answer: str
) -> None:
    assert verdict(gate, who, scope, local_address) == answer


@pytest.mark.parametrize("who", [ANONYMOUS, BOSS])
@pytest.mark.parametrize(
    ("local_address", "answer"),
    [
        *(("10.0.0.1", "accepted"), ("::ffff:10.0.0.1", "accepted"), ("::1", "accepted")),
        *(("0:0:0:0:0:0:0:1", "accepted"), ("10.0.0.2", "admin_not_here")),
        *(("::ffff:10.0.0.2", "admin_not_here"), ("::2", "admin_not_here"), ("127.0.0.1", "admin_not_here")),
        *(("", "admin_not_here"), ("/run/gateway.sock", "admin_not_here"), (None, "admin_not_here")),
    ],
)
def test_admin_requests_are_taken_at_meant_addresses_only(who: Caller, local_address: str | None, answer: str) -> None:
    assert verdict(MEANT, who, "admin", local_address) == answer
    assert verdict(OPEN, who, "admin", local_address) == "accepted"


def test_a_refusal_says_what_is_closed_and_no_address() -> None:
    with pytest.raises(RoundhouseError, match="without keys nobody may administer"):
        CLOSED.authorize_request(ANONYMOUS, "admin", "10.0.0.1")
    with pytest.raises(RoundhouseError, match="no admin requests at the address at which this one arrived") as told:
        MEANT.authorize_request(BOSS, "admin", "10.0.0.2")
    assert "10.0.0" not in told.value.message


@pytest.mark.parametrize(
    ("text", "address"),
    [
        *(("10.0.0.1", "10.0.0.1"), ("::ffff:10.0.0.1", "10.0.0.1"), ("::FFFF:a00:1", "10.0.0.1")),
        *(("fd00::1", "fd00::1"), ("fe80::1%eth0", "fe80::1%eth0")),
        *((text, None) for text in ("", "localhost", "10.0.0", "/run/x.sock")),
    ],
)
def test_addresses_are_parsed_or_refused(text: str, address: str | None) -> None:
    assert parse_address(text) == (None if address is None else ip_address(address))


@pytest.mark.parametrize(
    ("gate", "who", "local_address", "allows"),
    [
        *((OPEN, ANONYMOUS, None, True), (CLOSED, ANONYMOUS, None, False), (OPEN, USER, "10.0.0.1", False)),
        *((CLOSED, BOSS, "10.0.0.9", True), (MEANT, BOSS, "10.0.0.1", True), (MEANT, BOSS, "10.0.0.2", False)),
    ],
)
def test_who_may_administer_by_scope_and_address(
    gate: AdminGate, who: Caller, local_address: str | None, allows: bool
) -> None:
    assert gate.allows_admin(who, local_address) is allows


@require_access("admin")
async def admin_only() -> None: ...


@require_access("open")
async def open_to_all() -> None: ...


async def undeclared() -> None: ...


def test_the_first_route_of_method_and_path_tells() -> None:
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.get("/things/{name:path}")(admin_only)
    app.post("/things/{name:path}")(open_to_all)
    every_method = Route("/all/{rest:path}", admin_only)
    every_method.methods = None  # as of an ASGI application: every method is its own to judge
    app.router.routes.append(every_method)
    access = RouteAccess(app.routes)
    assert access.find_access("GET", "/things/a/b") == "admin"
    assert access.find_access("POST", "/things/a/b") == "open"
    assert access.find_access("BREW", "/all/x") == "admin"
    for method, path in (("PUT", "/things/a"), ("GET", "/things"), ("GET", "/Things/a"), ("GET", "/all"), ("GET", "")):
        assert access.find_access(method, path) is None, (method, path)
    assert access.list_declarations() == [
        ("*", "/all/{rest:path}", "admin"),
        ("GET", "/things/{name:path}", "admin"),
        ("POST", "/things/{name:path}", "open"),
    ]


@pytest.mark.parametrize("path", ["/things/", "/things/\n", "//things//"])
def test_a_path_whose_open_part_is_empty_keeps_the_access_of_its_route(path: str) -> None:
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.get("/things/{name:path}")(admin_only)
    access = RouteAccess(app.routes)
    if access.find_access("GET", path) is not None:
        assert access.find_access("GET", path) == "admin"
        assert not access.is_served("GET", path)
    assert respell_request(access, "GET", path.encode()) is None


def test_what_a_request_means_is_found() -> None:
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    for add in (app.get, app.post, app.delete):
        add("/things")(open_to_all)
        add("/things/{name}")(admin_only)
    access = RouteAccess(app.routes)
    meant = {
        ("HEAD", "/things"): ("GET", b"/things"),
        ("HEAD", "/things//"): ("GET", b"/things"),
        ("GET", "//things/"): ("GET", b"/things"),
        ("POST", "//things//a"): ("POST", b"/things/a"),
        ("DELETE", "/things/"): None,
        ("DELETE", "//things"): None,
        ("PUT", "/things/"): None,
        ("GET", "/other/"): None,
    }
    assert {each: respell_request(access, each[0], each[1].encode()) for each in meant} == meant


def test_a_route_without_a_declaration_is_an_error_that_names_it() -> None:
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.get("/fine")(open_to_all)
    app.delete("/models/{name}")(undeclared)
    app.router.routes.append(Mount("/assets", app=FastAPI()))
    with pytest.raises(UndeclaredRouteError) as raised:
        RouteAccess(app.routes)
    assert str(raised.value) == "no access is declared for DELETE /models/{name}, * /assets"


CHAT, EVIL = b"https://chat.example", b"https://evil.example"
OFF, NAMED, ALL = Cors([]), Cors(["https://chat.example/", "http://localhost:3000"]), Cors(["*"])
VARY: Header = (b"vary", b"origin")
METHOD: Header = (b"access-control-request-method", b"POST")
USUAL = (
    b"authorization, x-api-key, content-type, accept, last-event-id, x-client-id, x-conversation-id, "
    b"x-progress, x-load-progress, anthropic-version"
)


def asking(origin: bytes | None, *more: Header) -> list[Header]:
    """A request's headers. The origin is neither the first nor the last."""
    return [(b"host", b"localhost"), *([(b"origin", origin)] if origin is not None else []), *more, (b"accept", b"*/*")]


def said(headers: list[Header]) -> dict[bytes, bytes]:
    """No header is sent twice."""
    assert len({name for name, _ in headers}) == len(headers)
    return dict(headers)


@pytest.mark.parametrize(
    ("rule", "is_on", "allowed"),
    [(OFF, False, []), (NAMED, True, [CHAT, CHAT.upper(), b"http://localhost:3000"]), (ALL, True, [CHAT, EVIL])],
)
def test_which_origins_may_read(rule: Cors, is_on: bool, allowed: list[bytes]) -> None:
    assert rule.is_on is is_on
    origins = [CHAT, CHAT.upper(), EVIL, b"http://localhost:3000", b"https://chat.example/"]
    assert [origin for origin in origins if rule.allows_origin(origin)] == (origins if rule is ALL else allowed)


def test_an_answer_names_the_origin_that_may_read_it() -> None:
    headers = said(NAMED.response_headers(asking(CHAT)))
    lines = [b"%b: %b\r\n" % header for header in headers.items()]
    assert NAMED.header_lines(asking(CHAT)) == b"".join(lines)
    assert list(headers) == [b"access-control-allow-origin", b"access-control-expose-headers", b"vary"]
    assert (headers[b"access-control-allow-origin"], headers[b"vary"]) == (CHAT, b"origin")
    exposed = headers[b"access-control-expose-headers"].split(b", ")
    assert {b"x-request-id", b"x-client-id", b"retry-after", b"x-ratelimit-reset-tokens"} <= set(exposed)
    assert said(ALL.response_headers(asking(EVIL))) == {
        b"access-control-allow-origin": b"*",
        b"access-control-expose-headers": headers[b"access-control-expose-headers"],
    }


@pytest.mark.parametrize("origin", [EVIL, None, b""])
def test_to_others_an_answer_says_only_that_it_depends_on_the_origin(origin: bytes | None) -> None:
    assert NAMED.response_headers(asking(origin)) == [VARY]
    assert OFF.response_headers(asking(origin)) == []
    assert NAMED.header_lines(asking(origin)) == b"vary: origin\r\n"


@pytest.mark.parametrize(("rule", "origin"), [(NAMED, CHAT), (ALL, EVIL)])
def test_a_question_before_the_request_is_answered(rule: Cors, origin: bytes) -> None:
    wanted = (b"access-control-request-headers", b"X-Stainless-Lang, authorization")
    headers = said(rule.answer_preflight(asking(origin, METHOD, wanted)))
    assert {name: headers.pop(name) for name in said(rule.response_headers(asking(origin)))} == said(
        rule.response_headers(asking(origin))
    ), "what every answer says"
    assert headers == {
        b"access-control-allow-methods": b"GET, HEAD, POST, PUT, DELETE",
        b"access-control-allow-headers": wanted[1],
        b"access-control-max-age": b"600",
    }


@pytest.mark.parametrize("wanted", [None, b"", b"x\r\nset-cookie: a", b"\x80", b"a" * 2001, b"a;b"])
def test_a_question_without_decent_names_gets_the_usual_ones(wanted: bytes | None) -> None:
    more = [] if wanted is None else [(b"access-control-request-headers", wanted)]
    assert said(NAMED.answer_preflight(asking(CHAT, METHOD, *more)))[b"access-control-allow-headers"] == USUAL


@pytest.mark.parametrize(
    ("rule", "headers"),
    [
        *((OFF, asking(CHAT, METHOD)), (NAMED, asking(EVIL, METHOD)), (NAMED, asking(None, METHOD))),
        *((NAMED, asking(CHAT)), (ALL, asking(None, METHOD)), (ALL, asking(CHAT))),
    ],
)
def test_what_is_no_question_of_one_that_may_read_is_not_answered(rule: Cors, headers: list[Header]) -> None:
    assert rule.answer_preflight(headers) == []


def test_what_clients_say_of_themselves_is_remembered_in_bounds() -> None:
    lines = ResponseHeaders(Cors([]))
    for number in range(1000):
        agent = b"agent-%d %b" % (number, b"x" * 30_000)
        said = lines.client_headers(b"", [(b"user-agent", agent)], ANONYMOUS, None, b"")
        assert said == b"x-client-id: %b\r\n" % agent[:100]
        assert said == lines.client_headers(b"", [(b"user-agent", agent)], ANONYMOUS, None, b""), "remembered or not"
    assert sum(len(text) + len(line) for text, line in lines._clients.items()) < 100_000


PROGRAMS = (
    "assistant",
    "cli",
    "common",
    "contract",
    "controller",
    "gateway",
    "retrieval",
    "transfers/api.py",
    "worker",
)
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
    place = REPOSITORY / program
    files = (
        [place] if place.is_file() else [each for each in sorted(place.rglob("*.py")) if OUTGOING not in each.parents]
    )
    assert files
    uses = {_name_of(file): lines for file in files if (lines := find_uses(file.read_text()))}
    assert uses == {}


def _name_of(file: Path) -> str:
    return str(file.relative_to(REPOSITORY))


@pytest.mark.parametrize(
    "source",
    [
        *("def f(request): return request.url.path", "def f(asked: Request): return asked.url.path"),
        "def f(asked: 'Request | None'): return asked.base_url",
        "def f(asked: starlette.requests.HTTPConnection): return asked.url_for('x')",
        *("async def f(self): return self.request.url", "async def f(self): return self._request.url"),
        *("async def f(scope): return Request(scope).url.path", "async def f(scope): return URL(scope=scope).path"),
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
