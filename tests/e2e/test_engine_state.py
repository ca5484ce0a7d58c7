"""What engines keep: slots saved and restored over a swap, adapters that requests choose, replicas by name."""

from __future__ import annotations

from typing import Any

import pytest

from contract.status import ModelState
from tests.support.gguf_files import ADAPTED, make_gguf_adapter
from tests.support.http_client import Reply
from tests.support.roundhouse_stack import SENTENCE, RoundhouseStack
from tests.support.runtime_fixtures import RuntimeFixture

pytestmark = pytest.mark.engines

LLAMA = {"model_path": "clockwork.gguf", "llama_server_n_ctx": 4096, "llama_server_threads": 1, "target_inflight": 2}
SAVING = LLAMA | {"llama_server_slot_save": True, "llama_server_props": True}
TUNED = LLAMA | {
    "llama_server_lora": ["fox.gguf"],
    "llama_server_lora_scales": [0],
    "llama_server_slot_save": True,
    "replicas": 2,
}
FOX = [{"id": 0, "scale": 1}]
PROMPT = "word " * 200
HELLO = [{"role": "user", "content": "Hi"}]
ON = {"ROUNDHOUSE_ENGINE_STATE_ROUTES": "1"}


async def post(stack: RoundhouseStack, path: str, **fields: Any) -> Reply:
    return await stack.request("POST", path, fields)


async def scales(stack: RoundhouseStack, choice: str = "") -> tuple[str, list[float]]:
    """The name of the replica that answers, and the scales of its adapters, of `tuned`."""
    reply = await stack.request("GET", f"/lora-adapters?model=tuned{choice}")
    return reply.headers["X-Replica"], [each["scale"] for each in reply.success]


async def evaluate(stack: RoundhouseStack) -> int:
    """Let slot 1 compute `PROMPT`; the tokens that it did not hold yet."""
    reply = await post(stack, "/completion?model=saving", prompt=PROMPT, n_predict=1, id_slot=1)
    return int(reply.success["timings"]["prompt_n"])


async def chat(stack: RoundhouseStack, **fields: Any) -> str:
    """The text that `tuned` answers."""
    reply = await stack.chat("tuned", temperature=0, **fields)
    return str(reply.success["choices"][0]["message"]["content"])


async def say_elsewhere(stack: RoundhouseStack, **fields: Any) -> dict[str, str]:
    """The text that `tuned` answers in each API beside chat completions."""
    plain = {"model": "tuned", "temperature": 0, **fields}
    begun = {"prompt": "<|assistant|>"}
    completion = (await post(stack, "/v1/completions", **plain, **begun, max_tokens=40)).success
    response = (await post(stack, "/v1/responses", **plain, input="Hi", store=False)).success
    message = (await post(stack, "/v1/messages", **plain, messages=HELLO, max_tokens=40)).success
    native = (await post(stack, "/completion", **plain, **begun, n_predict=40)).success
    return {
        "/v1/completions": completion["choices"][0]["text"],
        "/v1/responses": response["output"][-1]["content"][0]["text"],
        "/v1/messages": message["content"][0]["text"],
        "/completion": native["content"],
    }


async def test_a_saved_slot_outlives_its_engine(stack: RoundhouseStack, runtime_fixture: RuntimeFixture) -> None:
    stack.settings |= ON
    stack.declare({"saving": SAVING})
    await stack.open("saving")
    whole = await evaluate(stack)
    assert whole > 200
    assert await evaluate(stack) == 1, "the last token is always computed again"

    saved = (await post(stack, "/slots/1?action=save&model=saving", filename="talk.bin")).success
    assert saved["n_saved"] >= whole
    assert (await post(stack, "/models/unload", model="saving")).success
    await stack.model_where("saving", lambda model: model.state is ModelState.UNLOADED, "unloaded")
    assert (await post(stack, "/models/load", model="saving")).success
    await stack.loaded("saving")
    restored = (await post(stack, "/slots/1?action=restore&model=saving", filename="talk.bin")).success
    assert restored["n_restored"] == saved["n_saved"]
    assert await evaluate(stack) == 1

    assert (await post(stack, "/slots/1?action=erase&model=saving")).success["n_erased"] == saved["n_saved"]
    assert await evaluate(stack) == whole
    assert (await post(stack, "/props?model=saving")).result == (200, {"success": True})
    for name in ("../talk.bin", "/etc/passwd", ".hidden", "a/b", "", None, 3, "x" * 300):
        refused = await post(stack, "/slots/1?action=save&model=saving", filename=name)
        assert (refused.status, refused.error["param"]) == (400, "filename"), name
    refused = await post(stack, "/slots/1?action=eat&model=saving")
    assert (refused.status, refused.error["param"]) == (400, "action")
    refused = await post(stack, "/slots/1?action=restore&model=saving", filename="never.bin")
    assert refused.status == 400, refused.body


async def test_adapters_are_chosen_by_requests_and_replicas_by_name(
    stack: RoundhouseStack, runtime_fixture: RuntimeFixture
) -> None:
    stack.settings |= ON
    make_gguf_adapter(stack.models / "fox.gguf")
    stack.declare({"tuned": TUNED})
    await stack.open()
    names = [each.name for each in (await stack.loaded("tuned"))["tuned"].replicas]
    assert await chat(stack) == SENTENCE
    assert await chat(stack, lora=FOX) == ADAPTED
    said = await say_elsewhere(stack, lora=FOX)
    assert said == dict.fromkeys(("/v1/completions", "/v1/responses", "/v1/messages", "/completion"), ADAPTED)

    refused = await stack.request("POST", "/lora-adapters?model=tuned", FOX)
    assert (refused.status, refused.error["param"]) == (400, "replica")
    assert all(name in refused.error["message"] for name in names)
    assert await scales(stack, "&replica=0") == (names[0], [0.0])
    assert (await scales(stack))[0] in names
    for number, choice in enumerate(("&replica=0", f"&replica={names[1]}")):
        chosen = await stack.request("POST", f"/lora-adapters?model=tuned{choice}", FOX)
        assert chosen.status == 200, chosen.body
        assert await scales(stack, choice) == (names[number], [1.0])
    assert await chat(stack) == ADAPTED
    assert await chat(stack, lora=[{"id": 0, "scale": 0}]) == SENTENCE

    refused = await stack.request("GET", "/slots?model=tuned&replica=nobody")
    assert (refused.status, refused.error["param"]) == (400, "replica")
    assert len((await stack.request("GET", f"/slots?model=tuned&replica={names[0]}")).success) == 2
    assert (await post(stack, "/slots/0?action=save&model=tuned&replica=0", filename="talk")).success
    statuses = [
        (await post(stack, f"/slots/0?action=restore&model=tuned&replica={number}", filename="talk")).status
        for number in (1, 0)
    ]
    assert statuses == [400, 200], "a replica has files of its own"
