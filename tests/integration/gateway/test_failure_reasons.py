"""Why a model is not loaded, as clients are told: the server's paths are for those who may administer it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from controller.schema.status import ModelState
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support.queueing import key

PATH = "/srv/of bob/models/private.gguf"
REASON = f"model: private.gguf is a symbolic link to '{PATH}', which does not exist"
LOG = "srv main: unknown argument --mmproj-of-bob\nsrv main: cwd is srv/bob"
WHOLE = f"{REASON}. Last log lines:\n{LOG}"
FAILED = route("m", state=ModelState.FAILED, last_error=REASON, full_error=WHOLE)
WAITING = route("m", state=ModelState.LOADING, last_error=REASON, full_error=WHOLE, autoload=True)
OF_OLDER_CONTROLLER = route("m", state=ModelState.FAILED, last_error=WHOLE)
"""Its error has the log lines, too."""
USER, BOSS = "secret-user", "secret-boss"
KEYS = (key("user", scopes=("inference",)), key("boss", scopes=("inference", "admin")))
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/embeddings": {"input": "Hi"},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9},
    "/v1/rerank": {"query": "Hi", "documents": ["Hi"]},
    "/tokenize": {"content": "Hi"},
}


async def read_refusal(gateway: GatewayHarness, path: str, key: str | None = None, **fields: Any) -> str:
    """The text of the refusal of a request."""
    reply = await gateway.post(path, {"model": "m"} | REQUESTS[path] | fields, key=key)
    assert reply.status == 503
    return reply.text


def check_is_hidden(text: str) -> None:
    """The reason is told, and no part of the path and none of the engine's own words."""
    assert "which does not exist" in text
    assert "[path]" in text
    assert "/srv" not in text
    assert "bob" not in text
    assert "srv main" not in text


@pytest.mark.parametrize("path", REQUESTS)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_inference_key_is_told_the_reason_without_paths(
    path: str, stream: bool, gateway: GatewayHarness
) -> None:
    """And without the lines of the engine's log, which who may administer is told."""
    for failed in (FAILED, OF_OLDER_CONTROLLER):
        await gateway.publish(failed, keys=KEYS)
        check_is_hidden(await read_refusal(gateway, path, USER, stream=stream))
        assert WHOLE in json.loads(await read_refusal(gateway, path, BOSS, stream=stream))["error"]["message"]


async def test_so_is_one_that_waited_for_the_load() -> None:
    async with gateway_harness(hold_headers_s=0.05) as gateway:
        for shown in (USER, BOSS):
            for stream in (False, True):
                await gateway.publish(WAITING, keys=KEYS)
                call = asyncio.create_task(wait_for_load(gateway, shown, stream=stream))
                await gateway.controller.report_where(lambda report: report.queued == {"m": 1})
                await gateway.publish(FAILED, keys=KEYS)
                text = await call
                assert "model_failed" in text
                if shown is USER:
                    check_is_hidden(text)
                else:
                    assert REASON in text
                    assert "srv main" in text
                await gateway.idle()


async def test_what_is_stored_for_a_tenant_holds_no_path_whoever_asked(gateway: GatewayHarness) -> None:
    await gateway.publish(WAITING, keys=KEYS)
    body = {"model": "m", "input": "Hi", "background": True}
    response_id = (await gateway.post("/v1/responses", body, key=BOSS)).body["id"]
    await gateway.controller.report_where(lambda report: report.queued == {"m": 1})
    await gateway.publish(FAILED, keys=KEYS)
    await gateway.idle()
    check_is_hidden((await gateway.get(f"/v1/responses/{response_id}", key=BOSS)).text)


async def wait_for_load(gateway: GatewayHarness, key: str, *, stream: bool) -> str:
    """What a chat is answered, as a whole or as a stream."""
    return (await gateway.chat(stream=stream, key=key)).text


@pytest.mark.parametrize(
    ("settings", "is_shown"),
    [
        ({}, True),
        ({"open_admin": False}, False),
        ({"host": "0.0.0.0", "open": True}, False),
        ({"host": "0.0.0.0", "open": True, "open_admin": True}, True),
        ({"admin_host": ("127.0.0.2",)}, False),
    ],
)
async def test_without_keys_it_is_told_to_those_to_whom_administration_is_open(
    settings: dict[str, Any], is_shown: bool
) -> None:
    async with gateway_harness(**settings) as gateway:
        await gateway.publish(FAILED)
        text = await read_refusal(gateway, "/v1/chat/completions")
        if is_shown:
            assert REASON in text
        else:
            check_is_hidden(text)


async def test_lists_of_models_tell_the_reason_without_paths(gateway: GatewayHarness) -> None:
    await gateway.publish(FAILED)
    for path in ("/v1/models", "/models", "/v1/models/m"):
        reply = await gateway.get(path)
        assert reply.status == 200
        check_is_hidden(reply.text)


async def test_health_tells_everybody_the_reason_without_paths(gateway: GatewayHarness) -> None:
    await gateway.publish(FAILED)
    check_is_hidden((await gateway.get("/health")).text)
