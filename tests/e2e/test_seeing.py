"""A model that sees and hears, declared in a file with its projector: exact texts in every API, in both runtimes."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest

from contract.status import ModelState
from tests.support.roundhouse_stack import SENTENCE, RoundhouseStack
from tests.support.runtime_fixtures import RuntimeFixture
from tests.support.seeing_model import BRIGHT, DARK, encode, make_image, make_projector, make_seeing_model, make_sound

pytestmark = pytest.mark.engines

TEXT_ONLY = {"model_path": "see.gguf", "llama_server_n_ctx": 4096, "llama_server_threads": 1}
SEEING = TEXT_ONLY | {"llama_server_mmproj": "projector.gguf"}
HEARING = SEEING | {"modalities": ["text", "image", "audio"]}
IMAGES = {BRIGHT: make_image(230), DARK: make_image(20)}


def _ask(part: dict[str, Any], text: str = "text") -> list[Any]:
    return [{"role": "user", "content": [part, {"type": text, "text": "What is it?"}]}]


async def test_images_and_sounds_reach_an_engine_with_a_projector(
    stack: RoundhouseStack, runtime_fixture: RuntimeFixture
) -> None:
    make_seeing_model(stack.models / "see.gguf")
    make_projector(stack.models / "projector.gguf", hears=True)
    broken = SEEING | {"llama_server_mmproj": "see.gguf"}
    stack.declare({"hearing": HEARING, "blind": TEXT_ONLY, "broken": broken})
    await stack.open("hearing", "blind")
    async with (
        stack.sdk() as client,
        anthropic.AsyncAnthropic(base_url=stack.url, api_key="none", max_retries=0) as messages,
    ):
        models = {model.id: (model.model_extra or {})["modalities"] async for model in client.models.list()}
        assert (models["hearing"], models["blind"]) == (["text", "image", "audio"], ["text"])

        plain = await client.chat.completions.create(model="hearing", messages=[{"role": "user", "content": "Hi"}])
        assert plain.choices[0].message.content == SENTENCE
        for said, image in IMAGES.items():
            url = f"data:image/png;base64,{encode(image)}"
            asked = _ask({"type": "image_url", "image_url": {"url": url}})
            chat = await client.chat.completions.create(model="hearing", messages=asked)
            assert chat.choices[0].message.content == said
            given = _ask({"type": "input_image", "detail": "auto", "image_url": url}, "input_text")
            assert (await client.responses.create(model="hearing", input=given)).output_text == said
            source = {"type": "base64", "media_type": "image/png", "data": encode(image)}
            asked = _ask({"type": "image", "source": source})
            message = await messages.messages.create(model="hearing", max_tokens=64, messages=asked)
            assert [block.text for block in message.content if block.type == "text"] == [said]
            with pytest.raises(anthropic.BadRequestError, match="takes no image; it takes text"):
                await messages.messages.create(model="blind", max_tokens=64, messages=asked)
        for said, amplitude in ((BRIGHT, 30_000), (DARK, 0)):
            sound = {"data": encode(make_sound(amplitude)), "format": "wav"}
            asked = _ask({"type": "input_audio", "input_audio": sound})
            chat = await client.chat.completions.create(model="hearing", messages=asked)
            assert chat.choices[0].message.content == said
    failed = await stack.model_where("broken", lambda model: model.state is ModelState.FAILED, "it failed")
    assert str(failed.last_error).startswith("`llama_server_mmproj` is no projector of this model"), failed.last_error
