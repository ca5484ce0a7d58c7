"""A new user's first hour: the openai SDK, unmodified, on real engines; a remote model."""

from __future__ import annotations

import shutil
from pathlib import Path

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from contract.status import ModelState
from tests.support.roundhouse_stack import SENTENCE, RoundhouseStack
from tests.support.runtime_fixtures import RuntimeFixture
from tests.support.wait import until

pytestmark = pytest.mark.engines

LLAMA = {"model_path": "clockwork.gguf", "llama_server_n_ctx": 4096, "llama_server_threads": 1}
EMBEDDING = {"model_path": "clockwork.gguf", "llama_server_embedding": True, "llama_server_pooling": "mean"}
HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello"}]


async def test_the_openai_sdk_unmodified(stack: RoundhouseStack, runtime_fixture: RuntimeFixture) -> None:
    off = LLAMA | {"enabled": False}
    stack.declare({"chat": LLAMA | {"aliases": ["gpt-4o"]}, "embed": EMBEDDING, "off": off})
    await stack.open("chat", "embed")
    async with stack.sdk() as client:
        listed = {model.id async for model in client.models.list()}
        assert {"chat", "embed"} <= listed
        # Declared of the one; of the other, the engine tells what its model has.
        for name in ("chat", "gpt-4o", "embed"):
            assert ((await client.models.retrieve(name)).model_extra or {})["context_length"] == 4096, name
        for name in ("chat", "gpt-4o"):
            answer = await client.chat.completions.create(model=name, messages=HELLO)
            assert answer.choices[0].message.content == SENTENCE
            assert answer.usage is not None
            assert answer.usage.completion_tokens == 16
        stream = await client.chat.completions.create(model="chat", messages=HELLO, stream=True)
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(pieces) == SENTENCE
        assert len([piece for piece in pieces if piece]) > 5
        completion = await client.completions.create(model="chat", prompt="<|assistant|>", max_tokens=4)
        assert completion.choices[0].text == "The quick brown fox"
        embedded = await client.embeddings.create(model="embed", input=["one", "two"])
        assert len(embedded.data) == 2
        assert len(embedded.data[0].embedding) == 128
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.chat.completions.create(model="nobody", messages=HELLO)
        assert unknown.value.code == "unknown_model"
        with pytest.raises(openai.InternalServerError) as unloaded:
            await client.chat.completions.create(model="off", messages=HELLO)
        assert unloaded.value.code == "model_not_loaded"
        # The gateway knows the vocabulary, so that the engine need not count so long a prompt.
        await until("it is refused unseen", lambda: _is_refused_unseen(client))


async def _is_refused_unseen(client: openai.AsyncOpenAI) -> bool:
    with pytest.raises(openai.BadRequestError) as refused:
        await client.completions.create(model="chat", prompt="x" * 60_000)
    assert refused.value.code == "context_length_exceeded"
    return "resulted in at least" in refused.value.message


async def test_a_model_of_another_roundhouse(process_stack: RoundhouseStack, clockwork: Path, tmp_path: Path) -> None:
    shutil.copy(clockwork, process_stack.models / "clockwork.gguf")
    process_stack.declare({"chat": LLAMA})
    await process_stack.open("chat")
    key = tmp_path / "key"
    key.write_text("secret-key\n")
    other = RoundhouseStack(process_stack.root / "other", "process")
    other.declare(
        {
            "far": {
                "backend": "openai_remote",
                "base_url": f"{process_stack.url}/v1",
                "remote_model": "chat",
                "api_key_file": str(key),
            },
            "nowhere": {"backend": "openai_remote", "base_url": "http://127.0.0.1:9/v1"},
        }
    )
    await other.open()
    try:
        await other.model_where("far", lambda model: model.state is ModelState.LOADED, "loaded")
        async with other.sdk() as client:
            answer = await client.chat.completions.create(model="far", messages=HELLO)
        assert answer.choices[0].message.content == SENTENCE
        nowhere = await other.model_where("nowhere", lambda model: model.state is ModelState.FAILED, "failed")
        assert "cannot be reached" in (nowhere.last_error or "")
        assert "secret-key" not in other.log("controller") + other.log("gateway")
    finally:
        await other.close()


async def test_a_stream_that_is_left_ends_the_engines_work(process_stack: RoundhouseStack) -> None:
    process_stack.declare({"slow": {"backend": "stub", "stub_text": "word " * 5000, "stub_token_delay_ms": 20}})
    await process_stack.open("slow")
    async with process_stack.sdk() as client:
        stream = await client.chat.completions.create(model="slow", messages=HELLO, stream=True)
        async for _ in stream:
            break
        await process_stack.model_where("slow", lambda model: model.replicas[0].inflight == 1, "one is inside")
        await stream.close()
    await process_stack.model_where("slow", lambda model: model.replicas[0].inflight == 0, "none is inside")
