"""LiteRT-LM in a real worker, on the models that .ci/litertlm writes: results of tools, and the gateway in front."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from controller.engines import ENGINES
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import gateway_harness
from tests.support.litertlm_model import DONE_SAID
from tests.support.scripted_models import USER, choice, tool
from tests.support.worker_engines import ENGINES as OFFERS
from tests.support.worker_engines import TOKEN, Fleet
from worker.clockwork import SENTENCE

pytestmark = pytest.mark.engines

TOOL = tool("weather", {"type": "object", "properties": {"city": {"type": "string"}}})


def test_a_conversation_goes_on_with_the_result_of_a_tool(fleet: Fleet) -> None:
    caller = fleet.litert_caller()
    called = choice(caller, tools=[TOOL])["message"]
    [call] = called["tool_calls"]
    answer = {"role": "assistant", "content": called["content"], "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": call["id"], "content": '{"degrees": 7}'}
    assert choice(caller, messages=[*USER, answer, result], tools=[TOOL])["message"]["content"] == DONE_SAID


async def test_litert_lm_serves_through_the_gateway(fleet: Fleet) -> None:
    worker = fleet.plain(OFFERS["litert_lm"])
    engine = ENGINES["litert_lm"]
    definition = engine.definition.model_validate({"model_path": "m.litertlm"})
    async with (
        gateway_harness() as gateway,
        openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="any", max_retries=0) as client,
    ):
        apis, capabilities = engine.list_apis(definition), engine.derive_capabilities(definition)
        known: dict[str, Any] = {"apis": apis, "capabilities": capabilities}
        await gateway.publish(route("demo", [f"http://127.0.0.1:{worker.port}"], token=TOKEN, **known))
        turns: list[Any] = [*USER, {"role": "assistant", "content": SENTENCE}, {"role": "user", "content": "again"}]
        chat = await client.chat.completions.create(model="demo", messages=turns)
        assert chat.choices[0].message.content == SENTENCE
        response = await client.responses.create(model="demo", input=turns)
        assert response.output_text == SENTENCE
        text = await client.completions.create(model="demo", prompt="hello")
        assert text.choices[0].text == SENTENCE
