"""A model of CTranslate2 behind the one address: passed through, translated, told to think or not."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest

from tests.support.clockwork_folders import make_ct2
from tests.support.roundhouse_stack import RoundhouseStack
from tests.support.scripted_models import SPOKEN, THINKER, THINKER_TEMPLATE, THOUGHT

pytestmark = pytest.mark.engines

THINKER_MODEL = {
    "backend": "ct2",
    "model_path": "thinker",
    "prompt_format": "qwen3_template",
    "ct2_compute_type": "int8",
    "ct2_intra_threads": 1,
}
HELLO: Any = [{"role": "user", "content": "hello"}]
ANSWER: Any = {"role": "assistant", "content": "b"}


async def test_every_api_and_the_thinking_switch(process_stack: RoundhouseStack) -> None:
    stack = process_stack
    make_ct2(stack.models / "thinker", THINKER, THINKER_TEMPLATE, hidden=["<think>", "</think>"])
    stack.declare({"thinker": THINKER_MODEL})
    await stack.open("thinker")
    async with stack.sdk() as client:
        listed = (await client.models.retrieve("thinker")).model_extra or {}
        assert listed["capabilities"]["thinking_modes"] == ["default", "enabled", "disabled"]
        assert listed["context_length"] == 4096

        async def chat(**fields: Any) -> Any:
            reply = await client.chat.completions.create(model="thinker", messages=HELLO, extra_body=fields)
            return reply.choices[0].message

        thoughtful = await chat(thinking="enabled")
        assert (thoughtful.content, thoughtful.reasoning) == (SPOKEN, THOUGHT)
        assert (await chat(thinking="disabled")).content.strip() == SPOKEN
        response = await client.responses.create(model="thinker", input="hello")
        assert response.output_text == SPOKEN
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="thinker", messages=[*HELLO, ANSWER, *HELLO])
        assert refused.value.code == "multi_turn_unsupported"
    async with anthropic.AsyncAnthropic(base_url=stack.url, api_key="none", max_retries=0) as client_of_messages:
        counted = await client_of_messages.messages.count_tokens(model="thinker", messages=HELLO)
        assert counted.input_tokens == 8
