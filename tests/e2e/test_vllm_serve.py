"""`vllm serve`, the real one, on the CPU: loaded through Roundhouse, asked through its gateway, ended by it.

One engine serves all of these tests, in their order: it takes 40 s to start.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import openai
import psutil
import pytest

from controller.engines import vllm_guard
from tests.support.admin import AdminApi
from tests.support.clockwork_folders import make_hf
from tests.support.gguf_files import ADAPTED, make_peft_adapter
from tests.support.http_client import send_request
from tests.support.installed_engines import ON_CPU, STARTS_S, engine_cache, programs
from tests.support.roundhouse_stack import RoundhouseStack
from tests.support.runtime_fixtures import ProcessRuntimeFixture, stack_of_processes
from tests.support.wait import until
from tests.support.worker_process import alive
from worker.clockwork import COMPLETION_TOKENS, SENTENCE

pytestmark = [pytest.mark.engines, pytest.mark.vllm, pytest.mark.timeout(600)]

HI: Any = [{"role": "user", "content": "hello"}]
DECLARED, LOADED = 512, 4096
"""Context lengths: as the file says, and as the load says."""


@dataclass
class Served:
    """A stack whose model `chat` is loaded, and what the admin API answered to that."""

    stack: RoundhouseStack
    answer: dict[str, Any]

    async def engine(self, path: str) -> tuple[int, str]:
        """The engine's own answer to a GET."""
        model = await self.stack.model("chat")
        assert model is not None
        (replica,) = model.replicas
        token = ProcessRuntimeFixture().token(self.stack, replica.name)
        reply = await send_request(f"{replica.endpoint}{path}", key=token)
        return reply.status, reply.text

    async def figure(self, name: str) -> float:
        """One of the engine's own figures."""
        _, text = await self.engine("/metrics")
        found = re.search(rf"^vllm:{name}\{{[^}}]*\}} (\S+)$", text, re.MULTILINE)
        assert found is not None, name
        return float(found[1])

    def family(self) -> list[psutil.Process]:
        """The engine's process and all below it."""
        (record,) = (self.stack.state / "replicas").glob("*.json")
        leader = psutil.Process(json.loads(record.read_text())["pid"])
        return [leader, *leader.children(recursive=True)]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    binary = programs() / "vllm"
    with stack_of_processes(OMP_NUM_THREADS="1") as stack:
        make_hf(stack.models / "clockwork")
        make_peft_adapter(stack.models / "lora" / "fox")
        stack.state.mkdir()
        engine_cache().mkdir(exist_ok=True)
        (stack.state / "cache").symlink_to(engine_cache())
        fields = {"backend": "vllm_serve", "model_path": "clockwork", "vllm_serve_binary": str(binary), **ON_CPU}
        fields |= {"vllm_lora_modules": {"fox": "lora/fox"}, "vllm_max_lora_rank": 8}
        # As `vllm_sleep` starts it, without `--enable-sleep-mode`, which vLLM refuses on the CPU.
        guard = stack.state / "guard" / "roundhouse_route_guard.py"
        guard.parent.mkdir()
        guard.write_text(Path(vllm_guard.__file__).read_text())
        fields |= {"extra_args": ["--middleware", "roundhouse_route_guard.RouteGuard"]}
        fields |= {"env": {"VLLM_SERVER_DEV_MODE": "1", "PYTHONPATH": str(guard.parent)}}
        stack.declare({"chat": {**fields, "enabled": False, "vllm_max_model_len": DECLARED, "target_inflight": 3}})
        yield Served(stack, asyncio.run(_loaded(stack)))


def override_of(stack: RoundhouseStack) -> dict[str, Any]:
    """What the load sets: the model also speculates, with itself."""
    return {
        "vllm_max_model_len": LOADED,
        "vllm_speculative_method": "draft_model",
        "vllm_speculative_model": str(stack.models / "clockwork"),
        "vllm_num_speculative_tokens": 2,
    }


async def _loaded(stack: RoundhouseStack) -> dict[str, Any]:
    await stack.open()
    async with AdminApi(stack.url) as admin:
        admin.session._timeout = aiohttp.ClientTimeout(total=STARTS_S)
        answer = await admin.load("chat", override_of(stack))
        assert answer.status == 200, answer.body
        return dict(answer.body)


async def test_what_a_load_sets_is_what_the_engine_has(served: Served) -> None:
    assert (served.answer["runtime_state"], served.answer["load_override"]) == ("loaded", override_of(served.stack))
    assert served.answer["definition"]["vllm_max_model_len"] == DECLARED
    status, text = await served.engine("/v1/models")
    assert status == 200
    model, module = json.loads(text)["data"]
    assert (model["id"], model["max_model_len"]) == ("chat", LOADED)
    assert (module["id"], module["parent"]) == ("fox", "chat")
    async with served.stack.sdk() as client:
        assert ((await client.models.retrieve("chat")).model_extra or {})["context_length"] == LOADED
    configured = re.search(r"non-default args: (.*)", _log(served))
    assert configured is not None
    assert "'max_num_seqs': 3" in configured[1]
    assert f"'kv_cache_memory_bytes': {2**28}" in configured[1]


async def test_the_exact_text_in_every_api(served: Served) -> None:
    async with served.stack.sdk() as client:
        answer = await client.chat.completions.create(model="chat", messages=HI, temperature=0)
        assert answer.choices[0].message.content == SENTENCE
        assert answer.usage is not None
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (8, COMPLETION_TOKENS)
        stream = await client.chat.completions.create(
            model="chat", messages=HI, temperature=0, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
        assert "".join(pieces) == SENTENCE
        # vLLM puts steps together that its server did not get to send in time: the number of pieces is up to the load.
        assert len([piece for piece in pieces if piece]) > 1
        usage = [chunk.usage for chunk in chunks if chunk.usage is not None]
        assert [each.completion_tokens for each in usage] == [COMPLETION_TOKENS]
        text = await client.completions.create(model="chat", prompt="<|assistant|>", max_tokens=3, temperature=0)
        assert text.choices[0].text == "The quick brown"
        response = await client.responses.create(model="chat", input="hello", temperature=0)
        assert (response.status, response.output_text) == ("completed", SENTENCE)


async def test_the_drafts_of_its_own_model_are_all_accepted(served: Served) -> None:
    drafted, accepted = [await served.figure(f"spec_decode_num_{each}_tokens_total") for each in ("draft", "accepted")]
    assert drafted == accepted > 0


@pytest.mark.parametrize(
    ("path", "body", "answer"),
    [
        ("/tokenize", {"prompt": "hello"}, {"count": 5, "max_model_len": LOADED, "tokens": [104, 101, 108, 108, 111]}),
        ("/detokenize", {"tokens": [104, 105]}, {"prompt": "hi"}),
        ("/v1/messages/count_tokens", {"messages": HI}, {"input_tokens": 8}),
        (
            "/v1/messages",
            {"messages": HI, "max_tokens": 30, "temperature": 0},
            {"content": [{"type": "text", "text": SENTENCE}]},
        ),
    ],
)
async def test_counting_and_messages(served: Served, path: str, body: dict[str, Any], answer: dict[str, Any]) -> None:
    content = (await served.stack.request("POST", path, {"model": "chat", **body})).success
    assert {name: content[name] for name in answer} == answer


async def test_a_request_chooses_a_lora_module_in_every_api(served: Served) -> None:
    chosen: dict[str, Any] = {"extra_body": {"lora": "fox"}, "model": "chat", "temperature": 0}
    async with served.stack.sdk() as client:
        chat = await client.chat.completions.create(messages=HI, **chosen)
        assert chat.choices[0].message.content == ADAPTED
        stream = await client.chat.completions.create(messages=HI, stream=True, **chosen)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == ADAPTED
        text = await client.completions.create(prompt="<|assistant|>", max_tokens=40, **chosen)
        assert text.choices[0].text == ADAPTED
        response = await client.responses.create(input="hello", store=False, **chosen)
        assert response.output_text == ADAPTED
        plain = await client.chat.completions.create(
            model="chat", messages=HI, temperature=0, extra_body={"lora": None}
        )
        assert plain.choices[0].message.content == SENTENCE
        with pytest.raises(openai.BadRequestError, match="`lora` must be one of fox"):
            await client.chat.completions.create(model="chat", messages=HI, extra_body={"lora": "dog"})
    message = {"model": "chat", "messages": HI, "max_tokens": 30, "temperature": 0, "lora": "fox"}
    reply = await served.stack.request("POST", "/v1/messages", message)
    assert reply.body["content"] == [{"type": "text", "text": ADAPTED}]


async def test_a_client_that_leaves_stops_the_work(served: Served) -> None:
    before = await served.figure("generation_tokens_total")
    endless = {"model": "chat", "messages": HI, "max_tokens": 4000, "ignore_eos": True, "stream": True}
    async with aiohttp.ClientSession() as session:
        answer = await session.post(f"{served.stack.url}/v1/chat/completions", json=endless)
        assert (await answer.content.readline()).startswith(b"data: ")
        assert await served.figure("num_requests_running") == 1
        answer.close()
    await until("the engine is idle", lambda: _idle(served))
    assert await served.figure("generation_tokens_total") - before < 4000


async def _idle(served: Served) -> bool:
    return await served.figure("num_requests_running") == 0


async def test_only_the_controller_s_token_is_let_in(served: Served) -> None:
    model = await served.stack.model("chat")
    assert model is not None
    for key in (None, "wrong"):
        assert (await send_request(f"{model.replicas[0].endpoint}/v1/models", key=key)).status == 401


async def test_the_routes_of_its_development_mode_are_the_controller_s_alone(served: Served) -> None:
    model = await served.stack.model("chat")
    assert model is not None
    endpoint = model.replicas[0].endpoint
    routes = [("GET", "/is_sleeping"), *(("POST", each) for each in ("/sleep", "/wake_up", "/collective_rpc"))]
    for method, path in [*routes, ("GET", "/server_info"), ("POST", "/reset_prefix_cache"), ("GET", "/version")]:
        for key in (None, "wrong"):
            assert (await send_request(f"{endpoint}{path}", method, key=key)).status == 401, path
        assert (await served.stack.request(method, path)).status in (404, 405), f"{path} through the gateway"
    assert await served.engine("/is_sleeping") == (200, '{"is_sleeping":false}')
    for path in ("/health", "/metrics"):
        assert (await send_request(f"{endpoint}{path}")).status == 200


async def test_of_a_killed_engine_and_of_one_that_is_stopped_while_it_loads_nothing_is_left(served: Served) -> None:
    killed = served.family()
    assert len(killed) >= 3, "the server, the engine's core and a worker"
    os.kill(killed[0].pid, signal.SIGKILL)  # the others would live on
    await until("its family is gone", lambda: not any(map(alive, killed)))
    started = await served.stack.model_where(
        "chat", lambda model: any(each.phase == "starting" for each in model.replicas), "started again"
    )
    assert started.last_error is not None
    await until("the engine's core starts", lambda: "EngineCore" in _log(served), STARTS_S)
    stopped = served.family()
    assert not set(killed) & set(stopped)
    async with AdminApi(served.stack.url) as admin:
        assert (await admin.unload("chat")).status == 200
        assert (await admin.state("chat", "unloaded"))["last_error"] is None
    assert not any(map(alive, stopped))
    assert ProcessRuntimeFixture().left(served.stack) == []


def _log(served: Served) -> str:
    (log,) = (served.stack.state / "logs").glob("rh-*.log")
    return log.read_text(errors="replace")
