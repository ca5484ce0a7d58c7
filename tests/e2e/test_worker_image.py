"""The engines that the worker's image holds, each in a container of a real Docker Engine."""

from __future__ import annotations

import shutil

import numpy as np
import openai
import pytest

from tests.support.clockwork_folders import make_ct2
from tests.support.house import SENTENCE, House
from tests.support.litertlm_files import litertlm
from tests.support.onnx_models import token_vectors, unit, write_model, write_vocabulary

TEXTS = {"hello world": "[CLS] hello world [SEP]", "fox": "[CLS] fox [SEP]"}
CHATS = {
    "llama": {"backend": "llama_cpp", "model_path": "clockwork.gguf"},
    "ct2": {"backend": "ct2", "model_path": "converted", "ct2_intra_threads": 1},
    "litert": {"model_path": "chat.litertlm"},
}


@pytest.mark.docker
@pytest.mark.parametrize("site", ["docker"], indirect=True)
async def test_the_image_serves_every_engine_that_it_holds(house: House) -> None:
    make_ct2(house.models / "converted")
    shutil.copy(litertlm("clockwork"), house.models / "chat.litertlm")
    write_model(house.models / "words.onnx")
    write_vocabulary(house.models / "words-vocab.txt")
    for path in house.models.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    house.declare(CHATS | {"words": {"model_path": "words.onnx", "onnx_threads": 1}})
    await house.open()
    await house.loaded("words", *CHATS)
    async with openai.AsyncOpenAI(base_url=f"{house.url}/v1", api_key="none", max_retries=0) as client:
        for model in CHATS:
            chat = await client.chat.completions.create(model=model, messages=[{"role": "user", "content": "hello"}])
            assert chat.choices[0].message.content == SENTENCE, model
        made = await client.embeddings.create(model="words", input=[*TEXTS])
    wanted = [unit(token_vectors(tokens).mean(0)) for tokens in TEXTS.values()]
    assert np.allclose([each.embedding for each in made.data], wanted, atol=1e-6)


@pytest.mark.docker
@pytest.mark.parametrize("site", ["docker"], indirect=True)
async def test_an_engine_that_the_image_lacks_is_named(house: House) -> None:
    (house.models / "hf").mkdir()
    (house.models / "hf" / "config.json").write_text("{}")
    house.declare({"heavy": {"backend": "vllm", "model_path": "hf"}})
    await house.open()
    heavy = await house.model_where("heavy", lambda model: model.last_error is not None, "it failed")
    assert "vLLM is not installed" in str(heavy.last_error)
