"""Each token that programs show to each other, at every route of every program: it opens what the table says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, Final
from unittest.mock import MagicMock

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from prometheus_client import CollectorRegistry

from common.internal_tokens import INTERNAL_TOKENS, OPEN_PATHS, RETRIEVAL_TOKEN, InternalToken, Program
from common.program import TokenCheck
from common.shared_token import SharedToken
from contract.retrieval import BACKGROUND_HEADER, ROUTES
from controller.api.app import create_app
from retrieval.embedding import GatewayModelClient
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import engines, gateway_harness
from tests.support.access_asker import BODY, KEYS, filled_in
from tests.support.access_table import find_expected, list_expected
from tests.support.wait import until
from transfers.assembly import Transfers
from transfers.settings import TransfersSettings

TOKENS: Final = {each.name: f"the-{each.name.replace(' ', '-')}-of-tests" for each in INTERNAL_TOKENS}
OWN: Final[dict[Program, InternalToken]] = {
    program: token for token in INTERNAL_TOKENS for program in token.opens if program != "gateway"
}
EMBED: Final = {"model": "org/m", "input": "Hi"}


def list_routes(program: Program, folder: Path) -> set[tuple[str, str]]:
    """Method and path of every route that the program serves; WebSockets have the method GET."""
    if program == "retrieval":
        return {(spec.method, spec.path) for spec in ROUTES} | {("GET", "/health"), ("GET", "/metrics")}
    if program == "controller":
        routes: Any = create_app(MagicMock(), CollectorRegistry()).routes
    else:
        routes = Transfers(TransfersSettings(models=str(folder))).build_app().routes
    return {(method, each.path) for each in routes for method in getattr(each, "methods", ("GET",))}


@pytest.mark.parametrize("program", OWN)
async def test_a_program_opens_to_its_own_token_alone(program: Program, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKENS[OWN[program].name])
    reached: list[str] = []

    async def app(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        reached.append(scope["path"])

    check = TokenCheck(app, SharedToken(tmp_path / "token", "the token"), OWN[program])
    routes = list_routes(program, tmp_path)
    assert {path for _, path in routes} >= OPEN_PATHS[program]
    for method, path in sorted(routes):
        # The header of each token with each token's text, and nothing.
        shown = [(header, text) for header in INTERNAL_TOKENS for text in INTERNAL_TOKENS]
        for header, text in [*shown, (None, None)]:
            headers = [] if header is None or text is None else [(header.header.encode(), TOKENS[text.name].encode())]
            reached.clear()
            status = await check_request(check, method, path, headers)
            is_shown = header is text is OWN[program]
            is_let_in = path in OPEN_PATHS[program] or is_shown
            assert (len(reached), status) == ((1, None) if is_let_in else (0, 401)), (method, path, headers)


async def check_request(check: Any, method: str, path: str, headers: list[tuple[bytes, bytes]]) -> int | None:
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request"}

    await check({"type": "http", "method": method, "path": path, "headers": headers}, receive, send)
    return next((message["status"] for message in sent if "status" in message), None)


@pytest.mark.parametrize("has_keys", [True, False])
async def test_at_the_gateway_the_token_of_retrieval_opens_two_routes_and_the_others_none(
    has_keys: bool, tmp_path: Path
) -> None:
    path_of_token = tmp_path / "token"
    path_of_token.write_text(TOKENS[RETRIEVAL_TOKEN.name])
    async with (
        gateway_harness(engine_state_routes=True, retrieval_token_file=path_of_token) as gateway,
        engines(1) as (engine,),
    ):
        await gateway.publish(route("org/m", [engine.url]), keys=KEYS if has_keys else ())

        async def answer_to(method: str, path: str, token: InternalToken) -> tuple[int, str | None]:
            body = None if method in ("GET", "HEAD") else BODY
            request = gateway.request(
                method, f"{path}?model=org/m", data=body, headers={token.header: TOKENS[token.name]}
            )
            async with request as answer:
                text = await answer.text() if answer.status in (401, 403) and method != "HEAD" else ""
                return answer.status, json.loads(text)["error"]["code"] if text else None

        opened: set[tuple[str, str]] = set()
        for declared_method, declared_path in list_expected():
            method, path = declared_method.replace("*", "POST"), filled_in(declared_path)
            if find_expected(method, path) in ("open", "metrics", "page"):
                continue
            before = len(engine.client_requests)
            told = await answer_to(method, path, RETRIEVAL_TOKEN)
            if RETRIEVAL_TOKEN.opens_route("gateway", method, path):
                opened.add((method, path))
                assert told[0] not in (401, 403), (method, path, told)
                continue
            assert told in ((403, "scope_required"), (403, None)), (method, path, told)
            assert len(engine.client_requests) == before
            if has_keys:
                for token in INTERNAL_TOKENS:
                    if token is not RETRIEVAL_TOKEN:
                        assert (await answer_to(method, path, token))[0] == 401, (method, path, token.name)
        assert opened == set(RETRIEVAL_TOKEN.opens["gateway"] or ())


async def test_no_token_is_taken_beside_an_origin_or_at_a_websocket(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKENS[RETRIEVAL_TOKEN.name])
    shown = {RETRIEVAL_TOKEN.header: TOKENS[RETRIEVAL_TOKEN.name]}
    async with gateway_harness(retrieval_token_file=tmp_path / "token") as gateway, engines(1) as (engine,):
        await gateway.publish(route("org/m", [engine.url]))
        for headers, status in ((shown | {"origin": "http://localhost"}, 401), (shown, 200)):
            reply = await gateway.post("/v1/embeddings", EMBED, headers=headers)
            assert reply.status == status, reply.text
        upgrade = shown | {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
        upgrade["sec-websocket-key"] = "dGhlIHNhbXBsZSBub25jZQ=="
        reply = await gateway.get("/v1/responses", headers=upgrade)
        assert reply.status == 403, reply.text


async def test_retrieval_has_so_many_requests_at_a_time_and_a_client_finds_a_place(tmp_path: Path) -> None:
    """A model with one slot lets eight wait, so that retrieval alone can never fill its queue."""
    (tmp_path / "token").write_text(TOKENS[RETRIEVAL_TOKEN.name])
    shown = {RETRIEVAL_TOKEN.header: TOKENS[RETRIEVAL_TOKEN.name]}
    async with gateway_harness(retrieval_token_file=tmp_path / "token") as gateway, engines(1) as (engine,):
        await gateway.publish(route("org/m", [engine.url], target_inflight=1))

        async def embed(headers: dict[str, str]) -> int:
            reply = await gateway.post("/v1/embeddings", EMBED | {"fault": "hold"}, headers=headers)
            return reply.status

        tasks = [asyncio.create_task(embed(shown | {BACKGROUND_HEADER: str(number % 2)})) for number in range(12)]
        await until("four are refused", lambda: sum(task.done() for task in tasks) == 4)
        assert [task.result() for task in tasks if task.done()] == [429] * 4
        client = asyncio.create_task(embed({}))
        await gateway.controller.report_where(lambda report: report.queued == {"org/m": 8})
        assert not client.done(), "it waits, and is not refused"
        engine.release.set()
        assert await client == 200
        assert sorted(await asyncio.gather(*tasks)) == [200] * 8 + [429] * 4


async def test_retrieval_itself_waits_for_its_turn_and_leaves_room_for_searches() -> None:
    asked: list[bool] = []
    release = asyncio.Event()

    async def reply(request: web.Request) -> web.Response:
        asked.append(request.headers.get(BACKGROUND_HEADER) == "1")
        await release.wait()
        return web.json_response({"data": [{"index": 0, "embedding": [1.0]}]})

    app = web.Application()
    app.router.add_post("/v1/embeddings", reply)
    async with (
        TestServer(app, host="127.0.0.1") as server,
        GatewayModelClient(str(server.make_url("/")), lambda: "token", 4) as client,
    ):
        documents = [asyncio.create_task(client.embed_texts("m", ["a"], is_background=True)) for _ in range(6)]
        await until("two are asked", lambda: len(asked) == 2)
        searches = [asyncio.create_task(client.embed_texts("m", ["a"], is_background=False)) for _ in range(3)]
        await until("two searches are", lambda: len(asked) == 4)
        assert asked == [True, True, False, False]
        release.set()
        assert await asyncio.gather(*documents, *searches) == [[[1.0]]] * 9
