"""What engines keep: slots saved and restored over a swap, adapters that requests choose, replicas by name."""

from __future__ import annotations

from typing import Any

import pytest

from controller.schema.status import ModelState
from tests.support.lora_adapters import ADAPTED, make_gguf_adapter
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


class Client:
    def __init__(self, stack: RoundhouseStack) -> None:
        self._stack = stack

    async def post(self, path: str, **fields: Any) -> tuple[int, Any]:
        return (await self._stack.request("POST", path, fields)).result

    async def put_list(self, path: str, value: list[Any]) -> tuple[int, Any]:
        return (await self._stack.request("POST", path, value)).result

    async def get(self, path: str) -> tuple[int, Any]:
        return (await self._stack.request("GET", path)).result

    async def scales(self, choice: str = "") -> tuple[str, list[float]]:
        """The name of the replica that answers, and the scales of its adapters, of `tuned`."""
        reply = await self._stack.request("GET", f"/lora-adapters?model=tuned{choice}")
        return reply.headers["X-Replica"], [each["scale"] for each in reply.success]

    async def evaluate(self) -> int:
        """Let slot 1 compute `PROMPT`; the tokens that it did not hold yet."""
        status, answer = await self.post("/completion?model=saving", prompt=PROMPT, n_predict=1, id_slot=1)
        assert status == 200, answer
        return int(answer["timings"]["prompt_n"])

    async def chat(self, **fields: Any) -> str:
        """The text that `tuned` answers."""
        status, answer = await self.post("/v1/chat/completions", model="tuned", messages=HELLO, temperature=0, **fields)
        assert status == 200, answer
        return str(answer["choices"][0]["message"]["content"])

    async def say_elsewhere(self, **fields: Any) -> dict[str, str]:
        """The text that `tuned` answers in each API beside chat completions."""
        plain = {"model": "tuned", "temperature": 0, **fields}
        begun = {"prompt": "<|assistant|>"}
        _, completion = await self.post("/v1/completions", **plain, **begun, max_tokens=40)
        _, response = await self.post("/v1/responses", **plain, input="Hi", store=False)
        _, message = await self.post("/v1/messages", **plain, messages=HELLO, max_tokens=40)
        _, native = await self.post("/completion", **plain, **begun, n_predict=40)
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
    client = Client(stack)
    whole = await client.evaluate()
    assert whole > 200
    assert await client.evaluate() == 1, "the last token is always computed again"

    status, saved = await client.post("/slots/1?action=save&model=saving", filename="talk.bin")
    assert status == 200, saved
    assert saved["n_saved"] >= whole
    status, answer = await client.post("/models/unload", model="saving")
    assert status == 200, answer
    await stack.model_where("saving", lambda model: model.state is ModelState.UNLOADED, "unloaded")
    status, answer = await client.post("/models/load", model="saving")
    assert status == 200, answer
    await stack.loaded("saving")
    status, restored = await client.post("/slots/1?action=restore&model=saving", filename="talk.bin")
    assert status == 200, restored
    assert restored["n_restored"] == saved["n_saved"]
    assert await client.evaluate() == 1

    status, answer = await client.post("/slots/1?action=erase&model=saving")
    assert (status, answer["n_erased"]) == (200, saved["n_saved"])
    assert await client.evaluate() == whole
    status, answer = await client.post("/props?model=saving")
    assert (status, answer) == (200, {"success": True})
    for name in ("../talk.bin", "/etc/passwd", ".hidden", "a/b", "", None, 3, "x" * 300):
        status, answer = await client.post("/slots/1?action=save&model=saving", filename=name)
        assert (status, answer["error"]["param"]) == (400, "filename"), name
    status, answer = await client.post("/slots/1?action=eat&model=saving")
    assert (status, answer["error"]["param"]) == (400, "action")
    status, answer = await client.post("/slots/1?action=restore&model=saving", filename="never.bin")
    assert status == 400, answer


async def test_adapters_are_chosen_by_requests_and_replicas_by_name(
    stack: RoundhouseStack, runtime_fixture: RuntimeFixture
) -> None:
    stack.settings |= ON
    make_gguf_adapter(stack.models / "fox.gguf")
    stack.declare({"tuned": TUNED})
    await stack.open()
    names = [each.name for each in (await stack.loaded("tuned"))["tuned"].replicas]
    client = Client(stack)
    assert await client.chat() == SENTENCE
    assert await client.chat(lora=FOX) == ADAPTED
    said = await client.say_elsewhere(lora=FOX)
    assert said == dict.fromkeys(("/v1/completions", "/v1/responses", "/v1/messages", "/completion"), ADAPTED)

    status, answer = await client.put_list("/lora-adapters?model=tuned", FOX)
    assert (status, answer["error"]["param"]) == (400, "replica")
    assert all(name in answer["error"]["message"] for name in names)
    assert await client.scales("&replica=0") == (names[0], [0.0])
    assert (await client.scales())[0] in names
    for number, choice in enumerate(("&replica=0", f"&replica={names[1]}")):
        status, answer = await client.put_list(f"/lora-adapters?model=tuned{choice}", FOX)
        assert status == 200, answer
        assert await client.scales(choice) == (names[number], [1.0])
    assert await client.chat() == ADAPTED
    assert await client.chat(lora=[{"id": 0, "scale": 0}]) == SENTENCE

    status, answer = await client.get("/slots?model=tuned&replica=nobody")
    assert (status, answer["error"]["param"]) == (400, "replica")
    status, slots = await client.get(f"/slots?model=tuned&replica={names[0]}")
    assert (status, len(slots)) == (200, 2)
    status, answer = await client.post("/slots/0?action=save&model=tuned&replica=0", filename="talk")
    assert status == 200, answer
    statuses = [
        (await client.post(f"/slots/0?action=restore&model=tuned&replica={number}", filename="talk"))[0]
        for number in (1, 0)
    ]
    assert statuses == [400, 200], "a replica has files of its own"
