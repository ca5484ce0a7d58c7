"""What a key opens, on every route that there is: routes are taken from the gateway's own tables and documents, so that
one that is added later is held to the same."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from multidict import CIMultiDict
from prometheus_client import CollectorRegistry
from yarl import URL

from contract.errors import ERROR_CODES, RoundhouseError
from contract.keys import Key
from contract.status import ModelState
from contract.tools import ToolRoute
from controller.api.app import create_app
from gateway.api.inference import INFERENCE_ROUTES
from gateway.exchange.hooks import ApiSpec
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness, until
from tests.fakes.mock_engine import MockEngine
from tests.support.access_asker import BOTH, bearer
from tests.support.access_table import find_expected
from tests.support.queueing import key

UNGATED = {"/health", "/health/live", "/health/ready", "/metrics", "/metrics/engines"}
STORED = {
    "/v1/responses/": "response_not_found",
    "/v1/chat/completions/{": "completion_not_found",
    "/v1/conversations/{": "conversation_not_found",
    "/v1/stream": "stream_not_found",
}
"""How paths of stored objects begin, and the code where there is none of that id."""
AICORE = "/v1/aicore/"
"""How paths begin that are about the model with the role `aicore`, which there is not here."""
DOCUMENTS = ("/v1/documents", "/v1/search", "/v1/tenants", "/v1/files", "/v1/vector_stores", "/v1/retrieval")
"""How paths of retrieval begin, which does not run here."""
ROUTER_CHANGES: dict[tuple[str, str], int] = {
    ("POST", "/models"): 1,
    ("DELETE", "/models"): 2,
    ("POST", "/models/load"): 1,
    ("POST", "/models/unload"): 1,
}
"""Routes of llama-server's router that change something, and how many requests the controller gets of one: a model's
declaration and its files are removed by one each."""
DOWNLOADED = route("x", state=ModelState.UNLOADED, source="hub:org/x", is_runtime_declared=True)
"""A model that may be downloaded again, and deleted."""
SERVER = "/tools/servers/{server}/"
"""What is below it is asked of a server that is not declared."""
TOOLS = (ToolRoute(name="current_time"),)
Kind = Literal["inference", "stored", "documents", "aicore", "admin", "models", "listing", "absent", "ungated"]


@dataclass(frozen=True)
class Route:
    """One route, and how it is asked."""

    method: str
    path: str
    """As documented."""
    kind: Kind
    api: ApiSpec | None = None
    """Of those that engines answer."""

    @property
    def target(self) -> str:
        target = self.path.replace("{id}", "0").replace("{name}", "org/m").replace("{operation}", "1")
        target = target.replace("{response_id}", "resp_1").replace("{completion_id}", "chatcmpl-1")
        target = target.replace("{conversation_id}", "conv_1").replace("{item_id}", "msg_1")
        target = target.replace("{conv_id}", "conv-1").replace("{server}", "none")
        if target == "/v1/stream":
            return "/v1/stream?conv_id=conv-1"
        if (self.method, target) == ("DELETE", "/models"):
            return f"/models?model={DOWNLOADED.name}"
        if (self.method, target) == ("POST", "/slots/0"):
            return "/slots/0?action=erase&model=org%2Fm"
        native = (self.api is not None and self.api.is_native) or target == "/health/warm"
        return f"{target}?model=org%2Fm" if native else target

    @property
    def away_code(self) -> str | None:
        """Code of a part that does not run here; None: the path is not about one."""
        return {"documents": "retrieval_unavailable", "aicore": "AICORE_UNAVAILABLE"}.get(self.kind)

    @property
    def absent_code(self) -> str | None:
        """Code of what is asked for, which does not exist; None: it does."""
        if self.method == "GET" and self.path.endswith("/benchmark"):
            return "benchmark_not_found"
        if self.path.startswith(SERVER):
            return "mcp_server_not_found"
        if self.kind != "stored":
            return None
        return next(code for start, code in STORED.items() if self.path.startswith(start))

    @property
    def engine_requests(self) -> int:
        """Requests that an engine gets of one that may come in."""
        inner = {("POST", "/health/warm"): 1, ("POST", "/v1/models/{name}/benchmark"): 3}
        return 1 if self.kind == "inference" else inner.get((self.method, self.path), 0)

    def list_actors(self, who: str, *, is_admin: bool) -> list[str]:
        """In whose names the controller is asked, once for each request that it gets of one that is let in. `who`:
        name of the key; `is_admin`: whether it has the scope."""
        if (self.method, self.path) == ("GET", "/models"):
            # Who may see the engines' command lines gets them in the list; the gateway itself asks for them.
            return ["gateway"] if is_admin else []
        count = 1 if self.kind == "admin" else ROUTER_CHANGES.get((self.method, self.path), 0)
        return [f"key {who} 127.0.0.1"] * count

    @property
    def is_json(self) -> bool:
        """Whether the body is read only where it is said to be JSON."""
        return self.path == "/mcp" or (self.method == "POST" and (self.method, self.path) in ROUTER_CHANGES)

    @property
    def body(self) -> bytes:
        """JSON that the route takes."""
        if self.method in ("GET", "DELETE"):
            return b""
        if self.path in ("/health/warm", "/v1/models/{name}/benchmark", "/v1/aicore/benchmark"):
            return b""
        if self.path == "/mcp":
            return b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}'
        if self.path == "/models":
            return json.dumps({"model": DOWNLOADED.name}).encode()
        if self.path == "/tools":
            return b'{"tool": "current_time", "params": {}}'
        if self.path == f"{SERVER}resources/read":
            return b'{"uri": "file:///a"}'
        if self.path == "/v1/streams/lookup":
            return b'{"conversation_ids": ["conv-1"]}'
        if self.path.startswith("/v1/responses"):
            return b'{"model": "org/m", "input": "Hi"}'
        asked = {"messages": [], "input": "Hi", "prompt": "Hi", "query": "Hi", "documents": ["Hi"]}
        return json.dumps({"model": "org/m", **asked}).encode()


def inference_routes() -> Iterator[Route]:
    """Those that engines answer."""
    for one in INFERENCE_ROUTES:
        yield Route(one.api.method, one.api.path, "inference", one.api)


async def every_route(gateway: GatewayHarness) -> list[Route]:
    """Those, those of the document, and some that are in none."""
    names = (
        "hub",
        "journal",
        "admin_service",
        "declaration_service",
        "host_service",
        "logs",
        "downloads",
        "model_files",
    )
    parts: Any = SimpleNamespace(**dict.fromkeys(names))
    gateway.controller.admin.document = create_app(parts, CollectorRegistry()).openapi()
    paths = (await gateway.get("/openapi.json", key="secret-all")).body["paths"]
    found = {(one.method, one.path): one for one in inference_routes()}
    for path, item in paths.items():
        for method in (name.upper() for name in item if name in ("get", "post", "put", "patch", "delete")):
            found.setdefault((method, path), Route(method, path, kind_of(path)))
    for method, path in (("GET", "/openapi.json"), ("GET", "/v1/models/a-n")):
        found[method, path] = Route(method, path, kind_of(path))
    for method, path in (("GET", "/nowhere"), ("POST", "/"), ("GET", "/v1/completions"), ("PUT", "/props")):
        found[method, path] = Route(method, path, "absent")
    for method in ("DELETE", "PATCH", "OPTIONS"):
        found[method, "/v1/admin/any/thing"] = Route(method, "/v1/admin/any/thing", "admin")
    return list(found.values())


def kind_of(path: str) -> Kind:
    if path in UNGATED:
        return "ungated"
    if path.startswith(("/v1/models", "/models", "/health/warm")):
        return "models"
    if path.startswith(AICORE):
        return "aicore"
    if path.startswith(DOCUMENTS):
        return "documents"
    if path.startswith(tuple(STORED)) and not path.startswith("/v1/streams/"):
        return "stored"
    return "admin" if path.startswith("/v1/admin/") else "listing"


KEYS = (
    key("all", scopes=BOTH, tools=("*",)),
    key("inference", tools=("current_time",)),
    key("admin", scopes=("admin",), tools=("*",)),
    key("expired", scopes=BOTH, expires_at=time.time() - 1),
    key("other", scopes=BOTH, models=("x", "org/*/m", "*/mm")),
    key("nothing", scopes=BOTH, models=()),
    key("alias", scopes=BOTH, models=("an-alias",), tools=("calculate", "current", "*/current_time")),
    key("pattern", scopes=BOTH, models=("nothing", "org/*"), tools=("nothing", "current_*")),
)
NOBODY: dict[str, list[tuple[str, str]]] = {
    "no key": [],
    "unknown": [("authorization", "Bearer secret-nobody")],
    "unknown, x-api-key": [("x-api-key", "secret-nobody")],
    "the hash": [("authorization", f"Bearer {KEYS[0].sha256}")],
    "the name": [("authorization", "Bearer all")],
    "empty": [("authorization", "Bearer ")],
    "empty, x-api-key": [("x-api-key", "")],
    "basic": [("authorization", "Basic c2VjcmV0LWFsbA==")],
    "no scheme": [("authorization", "secret-all")],
    "bearer in x-api-key": [("x-api-key", "Bearer secret-all")],
    "with more": [("authorization", "Bearer secret-all secret-all")],
    "prefix": [("authorization", "Bearer secret-al")],
    "two": [("authorization", "Bearer secret-all"), ("x-api-key", "secret-inference")],
    "twice": [("authorization", "Bearer secret-all"), ("authorization", "Bearer secret-all")],
    "good, then bad": [("x-api-key", "secret-all"), ("x-api-key", "secret-nobody")],
    "expired": [("authorization", "Bearer secret-expired")],
    "in a cookie": [("cookie", "authorization=Bearer secret-all; key=secret-all")],
    "by proxy": [("proxy-authorization", "Bearer secret-all")],
}


def verdict(asked: Route, who: str) -> tuple[int, str | None]:
    """Status and code that the route owes to who has that key; 0: none of the gate's refusals."""
    if asked.kind == "ungated":
        return 0, None
    access = find_expected(asked.method, asked.target.partition("?")[0])
    if (who == "inference" and access == "admin") or (who == "admin" and access == "inference"):
        return 403, "scope_required"
    names_model = asked.api is not None or asked.path.startswith(("/v1/models/", "/health/warm"))
    if who in ("other", "nothing") and names_model:
        return 403, "model_not_allowed"
    if who in ("other", "nothing", "alias") and (asked.method, asked.path) == ("POST", "/tools"):
        return 403, "tool_not_allowed"
    if asked.path.startswith(SERVER) and who != "all":
        return 403, "tool_not_allowed"
    return 0, None


@contextlib.asynccontextmanager
async def guarded(*keys: Key, **settings: Any) -> AsyncIterator[tuple[GatewayHarness, MockEngine]]:
    """A gateway with keys, whose model `org/m` is also called `an-alias` and `a-n`."""
    async with gateway_harness(engine_state_routes=True, **settings) as gateway, engines(1) as (engine,):
        engine.answers["/slots"] = engine.answers["/props"] = b"HTTP/1.1 200 X\r\ncontent-length: 2\r\n\r\n{}"
        counted = b'HTTP/1.1 200 X\r\ncontent-length: 19\r\n\r\n{"input_tokens": 1}'
        engine.answers["/v1/chat/completions/input_tokens"] = counted
        model = route("org/m", [engine.url], aliases=("an-alias", "a-n"), token="replica-token")
        await gateway.publish(model, DOWNLOADED, keys=keys, tools=TOOLS)
        yield gateway, engine


async def send(gateway: GatewayHarness, asked: Route, headers: Any, target: str | None = None) -> tuple[int, Any, str]:
    url = gateway.url + (target or asked.target)
    sent = CIMultiDict(headers)
    if asked.is_json:
        sent["content-type"] = "application/json"
    async with gateway.client.request(
        asked.method, URL(url, encoded=True), data=asked.body or None, headers=sent
    ) as response:
        is_endless = asked.path == "/models/sse" and response.status == 200
        return response.status, response.headers, "" if is_endless else await response.text()


def check_refusal(asked: Route, said: tuple[int, Any, str], status: int, code: str, who: str) -> None:
    """A refusal in the route's own form."""
    where = (asked.method, asked.path, who, said)
    assert said[0] == status, where
    body = json.loads(said[2])
    assert body["error"]["code"] == code, where
    request_id = (body if "request_id" in body else body["error"])["request_id"]
    assert (body["error"]["status"], request_id) == (status, said[1]["x-request-id"]), where
    assert body["error"]["next_steps"] == list(ERROR_CODES[code].next_steps), where
    if asked.api is not None:
        form = json.loads(asked.api.dialect.error_body(RoundhouseError(code, ""), "id"))
        assert (body.keys(), body["error"].keys()) == (form.keys(), form["error"].keys()), where
    assert ("www-authenticate" in said[1]) is (status == 401), where
    assert "secret-" not in said[2] + str(said[1]), where
    assert not any(each.sha256 in said[2] for each in KEYS), where


async def test_without_a_good_key_nothing_is_reached_but_health_and_metrics(caplog: pytest.LogCaptureFixture) -> None:
    async with guarded(*KEYS) as (gateway, engine):
        routes = await every_route(gateway)
        assert {one.path for one in routes if one.kind == "ungated"} == UNGATED
        assert sum(one.kind == "admin" for one in routes) > 10
        for asked in routes:
            for who, headers in NOBODY.items():
                said = await send(gateway, asked, headers)
                if asked.kind == "ungated":
                    assert said[0] == 200, (asked, who)
                else:
                    check_refusal(asked, said, 401, "invalid_api_key", who)
        assert not engine.client_requests
        assert not gateway.controller.admin.requests
        assert "secret-" not in await gateway.metrics() + caplog.text
        assert not any(each.sha256 in caplog.text for each in KEYS)


async def test_no_other_spelling_of_a_path_is_outside_the_gate() -> None:
    async with guarded(*KEYS) as (gateway, engine):
        for asked in await every_route(gateway):
            target = asked.target.partition("?")[0]
            encoded = "/" + "".join(f"%{ord(letter):02x}" for letter in target[1:])
            spellings = [encoded, f"/{target}", target.upper()]
            spellings += [target + end for end in ("/", "%00", ";x", "%3fx", "/../health")]
            spellings += [start + target for start in ("/health/..", "/metrics/%2e%2e", "/health%2f..")]
            if asked.kind == "ungated":  # the first of these are read as the same path
                spellings = [each for each in spellings if each not in (encoded, f"/{target}", f"{target}/")]
            for spelling in spellings:
                status, _, text = await send(gateway, asked, {}, spelling)
                assert (status, json.loads(text)["error"]["code"]) == (401, "invalid_api_key"), (asked, spelling)
        assert not engine.client_requests
        assert not gateway.controller.admin.requests


@pytest.mark.parametrize("who", ["all", "inference", "admin", "other", "nothing", "alias", "pattern"])
async def test_a_key_opens_what_it_says_and_no_more(who: str, caplog: pytest.LogCaptureFixture) -> None:
    is_admin = any(each.name == who and "admin" in each.scopes for each in KEYS)
    async with guarded(*KEYS) as (gateway, engine):
        for asked in await every_route(gateway):
            before = len(engine.client_requests), len(gateway.controller.admin.requests)
            status, code = verdict(asked, who)
            for headers in (bearer(who), {"x-api-key": f"secret-{who}"}, bearer(who) | {"x-api-key": f"secret-{who}"}):
                said = await send(gateway, asked, headers)
                if code is not None:
                    check_refusal(asked, said, status, code, who)
                elif asked.kind == "absent":
                    assert said[0] in (404, 405), (asked, said)
                elif asked.away_code is not None:
                    check_refusal(asked, said, 503, asked.away_code, who)
                elif asked.absent_code is not None:
                    check_refusal(asked, said, 404, asked.absent_code, who)
                else:
                    assert said[0] == 200, (said[2], asked, who)
                if asked.kind == "inference":
                    assert said[1]["x-client-id"] == who
            open_ = 0 if code else 3
            assert len(engine.client_requests) - before[0] == open_ * asked.engine_requests, asked
            actors = [passed.headers["x-roundhouse-actor"] for passed in gateway.controller.admin.requests[before[1] :]]
            assert actors == open_ * asked.list_actors(who, is_admin=is_admin), asked
        for seen in engine.client_requests:
            assert seen.headers["authorization"] == "Bearer replica-token"
            assert not {"x-api-key", "cookie"} & seen.headers.keys()
            assert "secret-" not in str(seen.headers)
        for passed in gateway.controller.admin.requests:
            assert "secret-" not in str(passed.headers)
        assert "secret-" not in await gateway.metrics() + caplog.text


async def test_streams_are_refused_with_a_status_and_not_in_a_stream() -> None:
    async with guarded(*KEYS) as (gateway, engine):
        for asked in inference_routes():
            if asked.api is None or not asked.api.streams:
                continue
            body = json.loads(asked.body) | {"stream": True}
            for who, status in (("nobody", 401), ("admin", 403), ("other", 403), ("all", 200)):
                async with gateway.post(asked.target, body, headers=bearer(who)) as response:
                    assert response.status == status, (asked.path, who)
                    is_stream = response.content_type == "text/event-stream"
                    assert is_stream is (status == 200)
        assert len(engine.client_requests) == sum(one.api is not None and one.api.streams for one in inference_routes())


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ({"requests_per_minute": 1}, "1 request(s) per minute"),
        ({"tokens_per_minute": 1}, "1 token(s) per minute"),
        ({"concurrency": 1}, "1 request(s) at a time"),
    ],
    ids=["requests", "tokens", "concurrency"],
)
async def test_a_keys_limits_hold_on_every_route(limit: dict[str, int], words: str) -> None:
    keys = (key("limited", scopes=BOTH, **limit), key("all", scopes=BOTH))
    async with guarded(*keys) as (gateway, engine), contextlib.AsyncExitStack() as stack:
        routes = await every_route(gateway)
        await use_up(gateway, engine, stack, holds="concurrency" in limit)
        for asked in routes:
            said = await send(gateway, asked, bearer("limited"))
            if asked.kind == "ungated":
                assert said[0] == 200
                continue
            is_read = asked.api is None and asked.method == "GET" and "concurrency" not in limit
            if is_read or asked.path.startswith("/v1/stream"):
                assert said[0] != 429, "reading takes nothing of these, nor does what is about a stream that is counted"
                assert (await send(gateway, asked, bearer("all")))[0] == said[0]
                continue
            check_refusal(asked, said, 429, "rate_limit_exceeded", "limited")
            assert words in said[2]
            assert said[1]["x-ratelimit-client"] == "limited"
            assert int(said[1]["retry-after"]) >= 1
            for name in ("requests", "tokens"):
                assert (f"x-ratelimit-remaining-{name}" in said[1]) is (f"{name}_per_minute" in limit)
            assert (await send(gateway, asked, bearer("all")))[0] != 429, asked
        others = sum(asked.engine_requests for asked in await every_route(gateway))
        assert len(engine.client_requests) == 1 + others, "those of the other key"
        assert "secret-" not in await gateway.metrics()


async def use_up(gateway: GatewayHarness, engine: MockEngine, stack: contextlib.AsyncExitStack, *, holds: bool) -> None:
    """Send the one request that `limited` has; `holds` keeps it inside until the stack is left."""
    chat = asyncio.ensure_future(gateway.chat("org/m", fault="hold" if holds else "", key="secret-limited"))
    stack.callback(chat.cancel)
    if holds:
        await until(lambda: len(engine.client_requests) == 1)
    else:
        assert (await chat).status == 200


async def test_models_are_listed_for_whom_they_are() -> None:
    async with guarded(*KEYS) as (gateway, _):
        for who, names in (("all", ["org/m", "x"]), ("other", ["x"]), ("alias", ["org/m"]), ("nothing", [])):
            for path in ("/v1/models", "/models"):
                listed = (await gateway.get(path, headers=bearer(who))).body["data"]
                assert [one["id"] for one in listed] == names, (who, path)


async def test_what_a_key_is_not_for_cannot_be_told_from_its_alias() -> None:
    """Which model stands behind an alias is not for those to know who may not use it."""
    async with guarded(*KEYS) as (gateway, _):
        for name in ("org/m", "an-alias", "a-n"):
            reply = await gateway.chat(name, key="secret-other")
            assert reply.status == 403
            assert not [each for each in ("org/m", "an-alias") if each in reply.text]
