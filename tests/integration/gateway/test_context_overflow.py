"""What an engine refuses as too long, as a whole gateway counts it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.fake_controller import route
from tests.fakes.fake_scripted_engine import script, scripted
from tests.fakes.gateway_harness import gateway_harness
from tests.support.queueing import key

SAID = b'{"error":{"code":400,"message":"request (9000 tokens) exceeds the available context size (4096 tokens)"}}'
HEAD = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(SAID)
LIMIT = 5000


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_takes_nothing_of_its_key_s_tokens_in_whatever_form_it_is_told(stream: bool) -> None:
    async with scripted(script(HEAD + SAID)) as engine, gateway_harness() as gateway:
        await gateway.publish(route("m", [engine.url]), keys=(key("a", tokens_per_minute=LIMIT),))
        body: dict[str, Any] = {"model": "m", "input": "x" * 9000, "stream": stream}
        reply = await gateway.post("/v1/responses", body, key="secret-a")
        assert reply.status == (200 if stream else 400)
        assert b"However, your messages resulted in 9000 tokens" in reply.content
        assert int(reply.headers["x-ratelimit-remaining-tokens"]) < LIMIT - 2000, "estimated"
        body["model"] = "nobody"
        reply = await gateway.post("/v1/responses", body, key="secret-a")
        assert reply.code == "unknown_model"
        assert reply.headers["x-ratelimit-remaining-tokens"] == str(LIMIT)
