"""What a real engine says of its failure: who may administer reads it, and nobody else."""

from __future__ import annotations

import functools
import json
from hashlib import sha256
from typing import Any

import aiohttp
import pytest

from contract.status import ModelState
from tests.support.roundhouse_stack import RoundhouseStack
from tests.support.wait import until

pytestmark = [pytest.mark.engines, pytest.mark.embedded]

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}
READ = ("/v1/models", "/models", "/v1/models/{}", "/v1/models/{}/status", "/health", "/metrics", "/metrics/engines")
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/messages": CHAT,
    "/v1/responses": {"input": "Hi"},
    "/v1/completions": {"prompt": "Hi"},
}
SAID = "cannot map the private-place of the weights, --mlock was given"


async def test_what_a_real_engine_says_is_told_to_administrators_alone(process_stack: RoundhouseStack) -> None:
    stack = process_stack
    (stack.models / "private-place.gguf").write_bytes(b"GGUF" + b"\x03\0\0\0" + b"\xff" * 400)
    keys = {
        name: {"sha256": sha256(f"secret-{name}".encode()).hexdigest(), "scopes": scopes}
        for name, scopes in (("user", ["inference"]), ("boss", ["inference", "admin"]))
    }
    stack.write("keys.yaml", {"keys": keys})
    words = {"stubborn": (SAID, SAID), "broken": ("private-place.gguf", "Last log lines:")}
    stack.declare(
        {
            "stubborn": {"backend": "stub", "enabled": True, "stub_fail": SAID},
            "broken": {"backend": "llama_server", "enabled": True, "model_path": "private-place.gguf"},
        }
    )
    stack.start("controller")
    stack.start("gateway")

    async def answer_to(method: str, path: str, name: str, **body: Any) -> tuple[int, str]:
        reply = await stack.request(method, path, body or None, key=f"secret-{name}")
        return reply.status, reply.text

    async def has_failed(name: str) -> bool:
        try:
            status, text = await answer_to("GET", f"/v1/admin/models/{name}", "boss")
        except aiohttp.ClientError:
            return False
        return status == 200 and words[name][1] in (json.loads(text)["last_error"] or "")

    for name, (said, _) in words.items():
        await until(f"{name} has failed", functools.partial(has_failed, name))
        for path in READ:
            status, text = await answer_to("GET", path.format(name), "user")
            assert (status, said in text, "og lines" in text) == (200, False, False), (path, text)
        for path, body in ASKED.items():
            for stream in (False, True):
                asked = body | {"model": name, "stream": stream}
                status, text = await answer_to("POST", path, "user", **asked)
                assert (status, "ended" in text) == (503, True), (path, text)
                assert (said in text, "og lines" in text) == (False, False), (path, text)
        status, text = await answer_to("POST", "/v1/chat/completions", "boss", model=name, **CHAT)
        assert (status, said in text) == (503, True), text
    model = await stack.model("stubborn")
    assert model is not None
    assert model.state in (ModelState.FAILED, ModelState.LOADING)
    assert SAID in (model.last_error or "")
    assert SAID not in (model.plain_error or SAID)
