"""Every method and path of the gateway, other spellings of them and odd Hosts, with every sort of key: what is let
in is what `tests.support.access_table` says, and nothing else is reached."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from dataclasses import replace
from typing import Any, Final

import pytest
from fastapi import FastAPI
from yarl import URL

from contract.route_spec import Access
from gateway.api.declare import HttpRoutes
from gateway.api.inference import INFERENCE_ROUTES, InferenceRoute, declare_inference
from gateway.api.models import declare_models
from gateway.app import Gateway
from gateway.exchange.hooks import ApiSpec
from gateway.ingress.middleware import UndeclaredRouteError, require_access
from gateway.routing.model_events import ModelEventLog
from gateway.routing.table import LiveRoutes
from gateway.settings import GatewaySettings
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, assemble_gateway, engines, gateway_harness
from tests.support.access_asker import (
    BODY,
    BOTH,
    ENDLESS,
    NO_RESPONSE,
    OPENS,
    Asker,
    bearer,
    filled_in,
    guarded,
    reached,
    some_of,
    verdict,
)
from tests.support.access_table import (
    MAY_BE_OPEN,
    OTHER_NAMES,
    WITHOUT_V1,
    find_expected,
    list_differences,
    list_expected,
    write_tidily,
)
from tests.support.raw_http import Answer, raw
from tests.support.wait import until

UNGUARDED: Final = ("open", "metrics")
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PURGE")
NO_ROUTES: Final = ("/pages", "/nowhere", "/v1", "/v1/admin", "/docs", "/redoc", "/health/cold", "/v2/models")
NAMED_OTHERWISE: Final = (*OTHER_NAMES, *(f"/{path}" for path in WITHOUT_V1), "/models/org/m", "/messages/count_tokens")


def declarations(gateway: Gateway) -> list[tuple[str, str, Access]]:
    """Of everything that it serves, by the web framework and without it."""
    direct = [
        (method.decode(), path.decode(), opener.args[0].scope)
        for (method, path), opener in gateway.inference._openers.items()
    ]
    return [*gateway.app.access.list_declarations(), *direct]


def test_every_route_demands_what_was_decided() -> None:
    declared = declarations(assemble_gateway(GatewaySettings()))
    assert list_differences(declared) == []
    assert {path for (_, path), access in list_expected().items() if access in UNGUARDED} == {
        *("/health", "/health/live", "/health/ready", "/metrics", "/metrics/engines")
    }
    assert [path for _, path, access in declared if access in UNGUARDED and not MAY_BE_OPEN.fullmatch(path)] == []


def test_what_engines_serve_is_declared_to_the_framework_too() -> None:
    """It answers other methods of these paths, and describes them."""
    gateway = assemble_gateway(GatewaySettings())
    framework = {(method, path): access for method, path, access in gateway.app.access.list_declarations()}
    for method, path, access in declarations(gateway):
        assert framework[method, path] == access


def test_a_gateway_with_a_route_that_declares_nothing_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    _add_route(monkeypatch, lambda: None)
    with pytest.raises(UndeclaredRouteError, match=r"no access is declared for POST /one-more$"):
        assemble_gateway(GatewaySettings())


def test_a_route_that_nobody_decided_about_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    _add_route(monkeypatch, require_access("any_key")(lambda: None))
    declared = declarations(assemble_gateway(GatewaySettings()))
    assert list_differences(declared) == ["POST /one-more: declared any_key, decided None"]


def _add_route(monkeypatch: pytest.MonkeyPatch, endpoint: Any) -> None:
    def declare_one_more(routes: HttpRoutes, live: LiveRoutes, events: ModelEventLog, **options: Any) -> None:
        declare_models(routes, live, events, **options)
        routes.app.post("/one-more")(endpoint)

    monkeypatch.setattr("gateway.app.declare_models", declare_one_more)


def test_an_inference_route_that_declares_nothing_cannot_be_made() -> None:
    """They are made where their modules are imported: the gateway does not start."""
    with pytest.raises(TypeError, match="scope"):
        ApiSpec("/v1/streams")  # type: ignore[call-arg]


@pytest.mark.parametrize("is_documented", [True, False])
def test_an_inference_route_that_nobody_decided_about_is_found(
    monkeypatch: pytest.MonkeyPatch, is_documented: bool
) -> None:
    """Also one that the framework does not know of."""
    extra = replace(INFERENCE_ROUTES[0], api=ApiSpec("/v1/streams", scope="inference"))

    def declare_some(app: FastAPI, one: InferenceRoute) -> None:
        if is_documented or one is not extra:
            declare_inference(app, one)

    monkeypatch.setattr("gateway.app.INFERENCE_ROUTES", (*INFERENCE_ROUTES, extra))
    monkeypatch.setattr("gateway.app.declare_inference", declare_some)
    declared = declarations(assemble_gateway(GatewaySettings()))
    assert list_differences(declared) == ["POST /v1/streams: declared inference, decided None"]


def test_a_route_that_opens_to_another_scope_is_found() -> None:
    declared = [one for one in declarations(assemble_gateway(GatewaySettings())) if one[1] != "/slots"]
    assert list_differences([*declared, ("GET", "/slots", "inference")]) == [
        "GET /slots: declared inference, decided admin"
    ]
    assert list_differences(declared) == ["GET /slots: declared None, decided admin"]


ANY_KEY = {*((method, "/openapi.json") for method in METHODS), ("POST", "/mcp")}
"""What any key opens; other paths that demand any key are no routes."""


async def request_as(gateway: GatewayHarness, method: str, path: str, who: str) -> tuple[int, str, bool]:
    """Status and text of an answer, and whether it says how to come in."""
    url = URL(f"{gateway.url}{path}?model=org%2Fm", encoded=True)
    body = None if method in ("GET", "HEAD", "TRACE") else BODY
    async with gateway.client.request(method, url, headers=bearer(who), data=body) as answer:
        is_endless = answer.content_type == "text/event-stream"  # /models/sse ends with the gateway
        text = "" if is_endless else await answer.text()
        return answer.status, text, "www-authenticate" in answer.headers


def reaches_controller(method: str, path: str, access: Access) -> int:
    """How many requests of all keys together the controller gets."""
    let_in = [scopes for scopes in OPENS.values() if access in scopes]
    if path.startswith("/v1/admin/"):
        return len(let_in)
    # Who may see the engines' command lines gets them in the list. The others change the model that `BODY` names.
    pending = (("GET", "/models"), ("HEAD", "/models"), ("POST", "/models/load"), ("POST", "/models/unload"))
    return sum("admin" in scopes for scopes in let_in) if (method, path) in pending else 0


async def test_every_method_and_path_with_every_sort_of_key() -> None:
    async with guarded() as (gateway, engine):
        for path in sorted({*map(filled_in, {path for _, path in list_expected()}), *NAMED_OTHERWISE, *NO_ROUTES}):
            for method in METHODS:
                access = find_expected(method, path)
                before = reached(gateway, engine)
                # All at once: on a busy machine each round trip waits for its turn.
                answers = await asyncio.gather(*(request_as(gateway, method, path, who) for who in OPENS))
                for who, (status, text, says_how) in zip(OPENS, answers, strict=True):
                    cell = (method, path, who, status, text)
                    refusal = verdict(access, who)
                    assert says_how is (status == 401), cell
                    if refusal is not None:
                        assert status == refusal[0], cell
                        assert method == "HEAD" or json.loads(text)["error"]["code"] == refusal[1], cell
                    elif access == "any_key" and (method, path) not in ANY_KEY:
                        assert status in (404, 405), cell
                    else:
                        assert status not in (401, 403), cell
                let_in = sum(access in OPENS[who] for who in OPENS)
                to_engine, to_controller = (
                    now - then for now, then in zip(reached(gateway, engine), before, strict=True)
                )
                assert to_controller == reaches_controller(method, path, access), (method, path)
                assert to_engine in ((0, let_in) if access in BOTH else (0,)), (method, path)


@pytest.mark.parametrize("method", ["BREW", "get", "G\u00c9T", "", "CONNECT", "PRI"])
async def test_what_is_no_method_reaches_nothing(method: str) -> None:
    async with guarded() as (gateway, engine):
        for path in ("/v1/admin/plan", "/v1/chat/completions", "/health"):
            async with raw(gateway) as client:
                client.write(f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode("latin-1"))
                assert (await client.answer()).status == 400
        assert not engine.client_requests
        assert not gateway.controller.admin.requests


def spellings(path: str) -> list[tuple[str, str]]:
    """Other ways to write a path, each with the path that it is read as: decoded once, and nothing else done to it."""
    slashes, head, tail = path[1:].replace("/", "%2F"), path[:-1], path[-1]
    # A target begins with a slash, so that of the page has one spelling less.
    last_encoded = [(f"{head}%{ord(tail):02X}", path)] if head else []
    return [
        *last_encoded,
        ("/" + "".join(f"%{ord(letter):02x}" for letter in path[1:]), path),
        ("/" + slashes, path),
        (path + "?x=/../health", path),
        (path + "#/health", path),
        ("http://localhost" + path, path),
        ("HTTP://LOCALHOST:1" + path, path),
        ("ftp://localhost" + path, path),
        ("http://localhost/" + path, "/" + path),
        ("/" + path, "/" + path),
        (path.replace("/", "//"), path.replace("/", "//")),
        (path + "/", path + "/"),
        (path + "//", path + "//"),
        (path.upper(), path.upper()),
        (path.replace("/", "/./"), path.replace("/", "/./")),
        (path + "/.", path + "/."),
        (path + "/../health", path + "/../health"),
        ("/health/.." + path, "/health/.." + path),
        ("/health/%2e%2e" + path, "/health/.." + path),
        ("/health%2f.." + path, "/health/.." + path),
        ("/metrics/..;" + path, "/metrics/..;" + path),
        ("/v1/models/../.." + path, "/v1/models/../.." + path),
        ("/v1/admin/../.." + path, "/v1/admin/../.." + path),
        ("/v1/admin/%2e%2e/%2e%2e" + path, "/v1/admin/../.." + path),
        ("/" + path[1:].replace("/", "%252F"), "/" + path[1:].replace("/", "%2F")),
        ("/" + path[1:].replace("/", "\\"), "/" + path[1:].replace("/", "\\")),
        ("/" + path[1:].replace("/", "%5c"), "/" + path[1:].replace("/", "\\")),
        (path.replace("/", "/%c0%af"), path.replace("/", "/\ufffd\ufffd")),
        (path + "%00", path + "\0"),
        (path + "%20", path + " "),
        (path + "%3fx", path + "?x"),
        (path + "%23x", path + "#x"),
        (path + ";x", path + ";x"),
        (path + ".json", path + ".json"),
    ]


@pytest.mark.parametrize("who", ["", "inference", "admin"])
async def test_no_spelling_of_a_path_goes_around_a_scope(who: str) -> None:
    async with guarded() as (gateway, engine), contextlib.AsyncExitStack() as stack:
        asker = Asker(gateway, stack)
        declared = len(list_expected())
        routes = [*list_expected(), *(("POST", path) for path in NAMED_OTHERWISE)]
        for turn, (declared_method, declared_path) in enumerate(routes):
            method = {"*": "POST", "HEAD": "GET"}.get(declared_method, declared_method)
            # Another name is read as one only where the target is a path, or a URL of HTTP.
            known = [each for each in spellings(filled_in(declared_path)) if turn < declared or each[0][:3] != "ftp"]
            # Nobody who is let in waits for the end of a stream that has none.
            is_refused = verdict(find_expected(*ENDLESS), who) is not None
            known = [each for each in known if (method, write_tidily(each[1])) != ENDLESS or is_refused]
            spelled = some_of(known, turn, who)
            before = reached(gateway, engine)
            answers = await asker.request_all([(method, target, b"localhost") for target, _ in spelled], who)
            let_in: list[Access] = []
            for (target, read_path), answer in zip(spelled, answers, strict=True):
                access = find_expected(method, read_path)
                refusal = verdict(access, who)
                cell = (method, target, who, answer)
                if refusal is not None:
                    assert (answer.status, answer.error["code"]) == refusal, cell
                else:
                    assert answer.status not in (401, 403), cell
                    let_in.append(access)
            to_engine, to_controller = (now - then for now, then in zip(reached(gateway, engine), before, strict=True))
            assert to_controller <= let_in.count("admin"), (method, declared_path)
            assert to_engine <= sum(access in BOTH for access in let_in), (method, declared_path)


@pytest.mark.parametrize(
    ("target", "read_path"),
    [("/a%0ab", "/a\nb"), ("/v1/admin%0d%0a/plan", "/v1/admin\r\n/plan"), ("/a%5Cb", "/a\\b"), ("/a%3Fb", "/a?b")],
)
async def test_an_answer_names_the_path_that_was_judged(target: str, read_path: str) -> None:
    """And not what is left of it in a URL that is put together and taken apart again."""
    async with guarded() as (gateway, _), contextlib.AsyncExitStack() as stack:
        answer = await Asker(gateway, stack).request("GET", target, "all")
        assert (answer.status, answer.error["message"]) == (404, f"There is no {read_path}.")


def stateful_requests(response_id: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Method, path and body of every request that names a stored response: of each route that has its id in the path,
    and of each API that continues one."""
    by_path: list[tuple[str, str, dict[str, Any]]] = [
        (method, filled_in(path, response_id), {}) for method, path in list_expected() if "{response_id}" in path
    ]
    apis = [one.api.path for one in INFERENCE_ROUTES if one.api.state in ("read", "made")]
    asked: dict[str, Any] = {"model": "org/m", "input": "Hi"}
    continued = [("POST", path, asked | {"previous_response_id": response_id}) for path in apis]
    streamed = [("POST", "/v1/responses", asked | {"previous_response_id": response_id, "stream": True})]
    return [*by_path, *continued, *streamed]


def test_every_route_of_stored_responses_is_among_them() -> None:
    assert {(method, path.split("/")[2]) for method, path, _ in stateful_requests("x")} == {
        (method, path.split("/")[2]) for method, path in list_expected() if path.startswith("/v1/responses")
    }


@pytest.mark.parametrize("is_running", [False, True])
async def test_anothers_state_is_as_if_there_was_none(is_running: bool) -> None:
    async with guarded() as (gateway, engine):
        made: dict[str, Any] = {"model": "org/m", "input": "Hi", "background": is_running}
        if is_running:
            made["fault"] = "hold"
        response_id = (await gateway.post("/v1/responses", made, key="secret-all")).body["id"]
        if is_running:
            await until("the engine works on it", lambda: engine.running == 1)
        engine_requests = len(engine.requests)

        async def read_each(asked_id: str) -> list[Any]:
            answers = []
            for method, path, body in stateful_requests(asked_id):
                reply = await gateway.request(method, path, body or None, key="secret-stranger")
                text = re.sub(r"req-[\w-]+", "", reply.text.replace(asked_id, NO_RESPONSE))
                names = sorted(reply.headers)
                answers.append((method, reply.status, json.loads(text)["error"]["code"], text, names))
            return answers

        of_nobody = await read_each(NO_RESPONSE)
        assert await read_each(response_id) == of_nobody
        assert [one[1:3] for one in of_nobody[:4]] == [(404, "response_not_found")] * 4
        assert {one[1:3] for one in of_nobody[4:]} == {(400, "previous_response_not_found")}
        assert len(engine.requests) == engine_requests
        path = f"/v1/responses/{response_id}"
        status = (await gateway.get(path, key="secret-all")).success["status"]
        assert status == ("in_progress" if is_running else "completed")
        engine.release.set()
        async with asyncio.timeout(60):
            assert (await gateway.request("DELETE", path, key="secret-all")).status == 200


WELL_FORMED_HOSTS: Final = (b"localhost:99999", b"..", b"a" * 4000)
HOSTS: Final = (
    *WELL_FORMED_HOSTS,
    *(b"localhost/health", b"localhost/v1/admin/plan?", b"localhost?/health", b"localhost#"),
    *(b"localhost:1/health#", b"/health", b"?", b"#/health", b"user@localhost"),
    *(b"user:password@localhost/health?@", b"@", b"local host", b"local\thost", b"[", b"]", b"[::1"),
    *(b"[::1%25/health]", b"localhost:port", b"\\\\localhost\\health", b"http://localhost/health"),
    *(b"%2e%2e/health", b"\xff\x80", "\u2100.example".encode()),
)


def status_and_message(answer: Answer) -> tuple[int, str]:
    """Status, and the message of a refusal; those of the MCP library are plain text."""
    if answer.status < 400:
        return answer.status, ""
    return answer.status, answer.error["message"] if answer.all("content-type") else answer.body.decode()


@pytest.mark.parametrize("who", ["", "inference", "admin"])
async def test_no_host_changes_a_verdict(who: str) -> None:
    """With keys the Host header says nothing of what is let in, nor of what the answer is; what is no Host is the same
    error on every route that is not open, with every key."""
    routes = {(method, filled_in(path)) for method, path in list_expected() if method not in ("*", "HEAD")}
    routes -= {ENDLESS}
    routes |= {("GET", "/v1/admin/plan"), ("GET", "/nowhere"), ("PUT", "/props"), ("GET", "/v1/admin%0a/plan")}
    async with guarded() as (gateway, _), contextlib.AsyncExitStack() as stack:
        asker = Asker(gateway, stack)
        for turn, (method, path) in enumerate(sorted(routes)):
            refusal = verdict(find_expected(method, path.replace("%0a", "\n")), who)
            plain = await asker.request(method, path, who)
            assert refusal == ((plain.status, plain.error["code"]) if plain.status in (401, 403) else None), path
            hosts = some_of(HOSTS, turn, who)
            answers = await asker.request_all([(method, path, host) for host in hosts], who)
            for host, answer in zip(hosts, answers, strict=True):
                is_open = find_expected(method, path.replace("%0a", "\n")) in ("open", "metrics")
                if host not in WELL_FORMED_HOSTS and not is_open:
                    assert (answer.status, answer.error["code"]) == (400, "invalid_request"), (method, path, host)
                    continue
                assert status_and_message(answer) == status_and_message(plain), (method, path, host)


@pytest.mark.parametrize("is_open", [False, True])
async def test_without_keys_an_odd_host_is_foreign_on_every_route(is_open: bool) -> None:
    settings: dict[str, Any] = {"host": "0.0.0.0", "open": True} if is_open else {}
    odd = [host for host in (*HOSTS, b"[::1%@evil.example]", b"[fe80::1%?]:80") if host != b"localhost:99999"]
    async with gateway_harness(engine_state_routes=True, **settings) as gateway, engines(1) as (engine,):
        await gateway.publish(route("org/m", [engine.url]))
        async with contextlib.AsyncExitStack() as stack:
            asker = Asker(gateway, stack)
            for declared_method, path in list_expected():
                method = {"*": "POST", "HEAD": "GET"}.get(declared_method, declared_method)
                answers = await asker.request_all([(method, filled_in(path), host) for host in odd], "")
                for host, answer in zip(odd, answers, strict=True):
                    if find_expected(method, filled_in(path)) in ("open", "metrics"):
                        assert answer.status == 200, (path, host)
                    else:
                        assert (answer.status, answer.error["code"]) == (403, "forbidden_host"), (path, host)
        assert not engine.client_requests
        assert not gateway.controller.admin.requests


@pytest.mark.parametrize("control", [b"\0", b"\x01", b"\x0b", b"\x1f", b"\x7f", b"\r", b"\n"])
async def test_a_host_with_a_control_character_is_no_request(control: bytes) -> None:
    async with guarded() as (gateway, engine):
        for path in ("/v1/admin/plan", "/v1/models", "/health"):
            async with raw(gateway) as client:
                client.write(f"GET {path} HTTP/1.1\r\n".encode() + b"host: local" + control + b"host\r\n\r\n")
                assert (await client.answer()).status == 400
        assert not engine.client_requests
        assert not gateway.controller.admin.requests
