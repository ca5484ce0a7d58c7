"""Completions by the `openai` package, from a real engine that speaks them, and from the same one as a chat."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import openai
import pytest
from openai.types import Completion

from contract.admin import Capabilities
from controller.engines.llama_server import LlamaServer
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support.installed_engines import Kind, needed, started
from tests.support.scripted_model_file import SPOKEN, TEMPLATE, make_caller
from tests.support.worker_process import Worker
from worker.clockwork import COMPLETION_TOKENS, SENTENCE, make_model

pytestmark = [pytest.mark.engines, pytest.mark.embedded]

TOKEN = "replica-token"
CHAT = "/v1/chat/completions"
AS_A_CHAT = "<|user|>Hi<|end|><|assistant|>"
"""What the demo model's template makes of it."""
TAKES_ALL = Capabilities(thinking_modes=("default", "enabled", "disabled"))
Complete = Callable[..., Awaitable[Any]]


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Worker]]:
    """llama-servers: one that says the sentence, one that thinks before it speaks."""
    kind: Kind = "embedded"
    needed(kind)
    folder = tmp_path_factory.mktemp("engines")
    make_model(folder / "plain.gguf")
    make_caller(folder / "thinker.gguf")
    (folder / "thinker.jinja").write_text(TEMPLATE)
    flags = ("--chat-template-file", str(folder / "thinker.jinja"))
    with (
        started(kind, folder, "plain", folder / "plain.gguf", token=TOKEN) as plain,
        started(kind, folder, "thinker", folder / "thinker.gguf", *flags, token=TOKEN) as thinker,
    ):
        yield {"plain": plain.ready(), "thinker": thinker.ready()}


@pytest.fixture(params=["answers at once", "answers by a stream"])
async def gateway(engines: dict[str, Worker], request: pytest.FixtureRequest) -> AsyncIterator[GatewayHarness]:
    """A gateway that knows the first one as `native` and as `over-chat`, the second one as `thinker`, over chat too."""

    def known(name: str, engine: str, *apis: str) -> Any:
        made = route(
            name,
            [f"http://127.0.0.1:{engines[engine].port}"],
            token=TOKEN,
            served_name=f"inner-{engine}",
            apis=apis,
            capabilities=TAKES_ALL,
            thinking_control="chat_template_kwargs",
        )
        gathers = request.param == "answers by a stream" and not LlamaServer.notices_leaving
        return made.model_copy(update={"notices_leaving": not gathers})

    async with gateway_harness() as built:
        await built.publish(
            known("native", "plain", "/v1/completions", CHAT),
            known("over-chat", "plain", CHAT),
            known("thinker", "thinker", CHAT),
        )
        yield built


@pytest.fixture(params=["sync", "async"])
async def complete(gateway: GatewayHarness, request: pytest.FixtureRequest) -> AsyncIterator[Complete]:
    """The SDK's method, unmodified: a completion, or the list of a stream's parts."""
    options: dict[str, Any] = {"base_url": f"{gateway.url}/v1", "api_key": "none", "max_retries": 0}
    if request.param == "async":
        async with openai.AsyncOpenAI(**options) as client:

            async def waiting(**fields: Any) -> Any:
                made = await client.completions.create(**fields)
                return [part async for part in made] if fields.get("stream") else made

            yield waiting
    else:
        with openai.OpenAI(**options) as blocking:

            def threaded(**fields: Any) -> Any:
                made = blocking.completions.create(**fields)
                return list(made) if fields.get("stream") else made

            yield lambda **fields: asyncio.to_thread(threaded, **fields)


def prompt(model: str) -> str:
    """The same to the engine."""
    return AS_A_CHAT if model == "native" else "Hi"


@pytest.mark.parametrize("model", ["native", "over-chat"])
async def test_a_completion_is_given_whole_by_every_model(complete: Complete, model: str) -> None:
    for given in (prompt(model), [prompt(model)]):
        made: Completion = await complete(model=model, prompt=given, temperature=0, user="u")
        assert [choice.model_dump(exclude_unset=True)["text"] for choice in made.choices] == [SENTENCE]
        assert (made.object, made.choices[0].index, made.choices[0].finish_reason) == ("text_completion", 0, "stop")
        assert made.usage is not None
        assert (made.usage.prompt_tokens, made.usage.completion_tokens) == (5, COMPLETION_TOKENS)
    cut: Completion = await complete(model=model, prompt=prompt(model), temperature=0, max_tokens=3)
    assert (cut.choices[0].text, cut.choices[0].finish_reason) == ("The quick brown", "length")
    stopped: Completion = await complete(model=model, prompt=prompt(model), temperature=0, stop=[" fox", "dog"])
    assert (stopped.choices[0].text, stopped.choices[0].finish_reason) == ("The quick brown", "stop")


@pytest.mark.parametrize("model", ["native", "over-chat"])
async def test_a_completion_is_streamed_by_every_model(complete: Complete, model: str) -> None:
    parts: list[Completion] = await complete(model=model, prompt=prompt(model), temperature=0, stream=True)
    assert "".join(part.choices[0].text for part in parts) == SENTENCE
    assert [part.choices[0].finish_reason for part in parts] == [None] * (len(parts) - 1) + ["stop"]
    assert {(part.id, part.object) for part in parts} == {(parts[0].id, "text_completion")}
    # llama-server tells it with the last text, and whatever has a text passes.
    assert all(part.usage is None for part in (parts[:-1] if model == "native" else parts))
    told: list[Completion] = await complete(
        model=model, prompt=prompt(model), temperature=0, stream=True, stream_options={"include_usage": True}
    )
    assert model == "native" or told[-1].choices == []
    assert told[-1].usage is not None
    assert (told[-1].usage.prompt_tokens, told[-1].usage.completion_tokens) == (5, COMPLETION_TOKENS)


async def test_the_ways_differ_in_nothing_but_what_is_the_engines_own(gateway: GatewayHarness) -> None:
    answers = []
    for model in ("native", "over-chat"):
        reply = await gateway.post("/v1/completions", model=model, prompt=prompt(model), temperature=0)
        answers.append(reply.body)
    native, over_chat = answers
    assert over_chat["choices"] == native["choices"]
    assert over_chat.keys() <= native.keys()
    for counts in (native["usage"], over_chat["usage"]):
        counts.pop("prompt_tokens_details", None)  # what was cached depends on what was asked before
    assert over_chat["usage"] == native["usage"]


async def test_thoughts_are_no_part_of_a_completion(complete: Complete) -> None:
    asked: dict[str, Any] = {"model": "thinker", "prompt": "Hi", "temperature": 0, "stop": "[TOOL_CALLS]"}
    made: Completion = await complete(**asked, extra_body={"thinking": "enabled"})
    assert made.choices[0].text.strip() == SPOKEN
    parts: list[Completion] = await complete(**asked, stream=True)
    assert "".join(part.choices[0].text for part in parts).strip() == SPOKEN


async def test_what_the_engine_refuses_it_refuses_in_its_own_words(
    gateway: GatewayHarness, engines: dict[str, Worker]
) -> None:
    said = {"messages": [{"role": "user", "content": "Hi"}], "grammar": "root ::= broken"}
    own = json.loads(engines["plain"].request("POST", CHAT, said)[1])["error"]
    reply = await gateway.post("/v1/completions", model="over-chat", prompt="Hi", grammar="root ::= broken")
    assert (reply.status, reply.error["message"], reply.code) == (400, own["message"], "engine_error")
