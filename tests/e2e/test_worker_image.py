"""The engines that the worker's image holds, each in a container of a real Docker Engine."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from tests.support.clockwork_folders import make_ct2
from tests.support.installed_engines import litertlm
from tests.support.onnx_models import token_vectors, unit, write_model, write_vocabulary
from tests.support.roundhouse_stack import SENTENCE, RoundhouseStack

pytestmark = pytest.mark.engines

TEXTS = {"hello world": "[CLS] hello world [SEP]", "fox": "[CLS] fox [SEP]"}
CHATS = {
    "llama": {"backend": "llama_cpp", "model_path": "clockwork.gguf"},
    "ct2": {"backend": "ct2", "model_path": "converted", "ct2_intra_threads": 1},
    "litert": {"model_path": "chat.litertlm"},
}


@pytest.mark.docker
@pytest.mark.parametrize("runtime_fixture", ["docker"], indirect=True)
async def test_the_image_serves_every_engine_that_it_holds_and_names_what_it_lacks(stack: RoundhouseStack) -> None:
    make_ct2(stack.models / "converted")
    shutil.copy(litertlm("clockwork"), stack.models / "chat.litertlm")
    write_model(stack.models / "words.onnx")
    write_vocabulary(stack.models / "words-vocab.txt")
    (stack.models / "hf").mkdir()
    (stack.models / "hf" / "config.json").write_text("{}")
    for path in stack.models.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    heavy = {"backend": "vllm", "model_path": "hf", "image": stack.environment()["ROUNDHOUSE_IMAGE_WORKER"]}
    stack.declare(CHATS | {"words": {"model_path": "words.onnx", "onnx_threads": 1}, "heavy": heavy})
    await stack.open("words", *CHATS)
    async with stack.sdk() as client:
        for model in CHATS:
            chat = await client.chat.completions.create(model=model, messages=[{"role": "user", "content": "hello"}])
            assert chat.choices[0].message.content == SENTENCE, model
        made = await client.embeddings.create(model="words", input=[*TEXTS])
    wanted = [unit(token_vectors(tokens).mean(0)) for tokens in TEXTS.values()]
    assert np.allclose([each.embedding for each in made.data], wanted, atol=1e-6)
    failed = await stack.model_where("heavy", lambda model: model.last_error is not None, "it failed")
    assert "vLLM is not installed" in str(failed.last_error)
