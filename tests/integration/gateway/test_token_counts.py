"""How many tokens a chat is, before it is asked: as the engine counts when it is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from contract.admin import Capabilities
from controller.engines.llama_server import LlamaServer, LlamaServerDefinition
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support.installed_engines import Kind, started
from tests.support.scripted_model_file import TEMPLATE, make_caller
from tests.support.worker_process import Worker

pytestmark = [pytest.mark.engines, pytest.mark.embedded]

TOKEN = "replica-token"
CHAT = "/v1/chat/completions"
COUNT = f"{CHAT}/input_tokens"
SWITCHED = TEMPLATE + "{%- if enable_thinking is defined and not enable_thinking %}[THINK][/THINK]{% endif %}"
HI: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def engine(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """A llama-server whose prompts are longer where thinking is switched off."""
    folder = tmp_path_factory.mktemp("engine")
    make_caller(folder / "m.gguf")
    (folder / "m.jinja").write_text(SWITCHED)
    flags = ("--chat-template-file", str(folder / "m.jinja"))
    with started(kind, folder, "m", folder / "m.gguf", *flags, token=TOKEN) as made:
        yield made.ready()


@pytest.fixture
async def gateway(engine: Worker) -> AsyncIterator[GatewayHarness]:
    known: dict[str, Any] = {
        "token": TOKEN,
        "served_name": "inner-m",
        "apis": LlamaServer().list_apis(LlamaServerDefinition(model_path="m.gguf")),
        "capabilities": Capabilities(thinking_modes=("default", "enabled", "disabled")),
        "thinking_control": "chat_template_kwargs",
        "target_inflight": 1,
    }
    async with gateway_harness() as built:
        await built.publish(route("m", [f"http://127.0.0.1:{engine.port}"], aliases=("alias",), **known))
        yield built


async def counted(gateway: GatewayHarness, **fields: Any) -> int:
    reply = await gateway.post(COUNT, **{"model": "m", **HI} | fields)
    assert "x-queue-position" not in reply.headers, "no slot is taken"
    tokens: int = reply.success["input_tokens"]
    assert reply.body == {"input_tokens": tokens, "object": "response.input_tokens"}
    return tokens


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"messages": [{"role": "system", "content": "Be brief."}, *HI["messages"]]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]},
        {"tools": [TOOL]},
        {"thinking": "default"},
        {"thinking": "disabled"},
        {"thinking": "enabled"},
        {"model": "alias", "stream": True, "max_tokens": 9},
    ],
    ids=str,
)
async def test_as_many_as_the_chat_itself_is_told_to_have(gateway: GatewayHarness, fields: dict[str, Any]) -> None:
    body = {"model": "m", **HI} | fields | {"max_tokens": 1, "stream": False}
    used = (await gateway.post(CHAT, **body)).body["usage"]["prompt_tokens"]
    assert await counted(gateway, **fields) == used


async def test_thinking_is_told_to_the_engine_as_in_a_chat(gateway: GatewayHarness) -> None:
    assert await counted(gateway, thinking="disabled") > await counted(gateway)


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"thinking": "maybe"}, "invalid_request", "thinking"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "modality_unsupported",
            "messages[0].content[0]",
        ),
    ],
)
async def test_what_a_chat_would_be_refused_for_is_refused(
    gateway: GatewayHarness, fields: Any, code: str, param: str
) -> None:
    reply = await gateway.post(COUNT, **{"model": "m", **HI} | fields)
    assert (reply.status, reply.code, reply.error["param"]) == (400, code, param)
