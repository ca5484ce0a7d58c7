"""A `.litertlm` model and an ONNX model, declared in a file, asked through the gateway."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest

from contract.status import ModelState
from tests.support.installed_engines import litertlm
from tests.support.onnx_models import token_vectors, unit, write_model, write_vocabulary
from tests.support.roundhouse_stack import RoundhouseStack
from worker.clockwork import CONTEXT, SENTENCE

pytestmark = pytest.mark.engines

TEXTS = {"hello world": "[CLS] hello world [SEP]", "fox": "[CLS] fox [SEP]"}
TURNS: list[Any] = [
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": SENTENCE},
    {"role": "user", "content": "again"},
]


async def test_both_serve_and_a_model_without_its_tokenizer_says_so(process_stack: RoundhouseStack) -> None:
    stack = process_stack
    shutil.copy(litertlm("clockwork"), stack.models / "chat.litertlm")
    for place in (stack.models, stack.models / "alone"):
        place.mkdir(exist_ok=True)
        write_model(place / "words.onnx")
    write_vocabulary(stack.models / "words-vocab.txt")
    stack.declare(
        {
            "chat": {"model_path": "chat.litertlm"},
            "words": {"model_path": "words.onnx", "onnx_threads": 1, "matryoshka": True},
            "alone": {"model_path": "alone/words.onnx"},
        }
    )
    await stack.open("chat", "words")
    alone = await stack.model_where("alone", lambda model: model.state is ModelState.FAILED, "it failed")
    assert "needs a file beside it that is not there: tokenizer.json" in str(alone.last_error)
    async with stack.sdk() as client:
        models = {model.id: model async for model in client.models.list()}
        assert (models["chat"].model_extra or {})["context_length"] == CONTEXT
        chat = await client.chat.completions.create(model="chat", messages=TURNS)
        assert chat.choices[0].message.content == SENTENCE
        made = await client.embeddings.create(model="words", input=[*TEXTS], dimensions=3)
    wanted = [unit(unit(token_vectors(tokens).mean(0))[:3]) for tokens in TEXTS.values()]
    assert np.allclose([each.embedding for each in made.data], wanted, atol=1e-6)
    assert [*stack.models.glob("*.xnnpack_cache")] == [], "the models folder is left as it was"
