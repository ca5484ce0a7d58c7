"""System messages behind the first user message, sent to engines whose chat template wants them first.

What the template takes, the controller's own prober learns of each engine.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import openai
import pytest

from controller.engines import ENGINES
from controller.observe.prober import Prober, ProbeTarget
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import gateway_harness
from tests.support import installed_engines, worker_engines
from tests.support.clockwork_folders import make_ct2
from tests.support.wait import until
from tests.support.worker_process import Worker
from worker.clockwork import CHAT_TEMPLATE, CONTEXT, SENTENCE, make_vocabulary, make_weights, write_gguf

pytestmark = pytest.mark.engines

TOKEN = "replica-token"
STRICT = """\
{%- for m in messages %}
{%- if m.role == 'system' and not loop.first %}
{{- raise_exception('System message must be at the beginning.') }}{% endif %}
<|{{ m.role }}|>{{ m.content }}<|end|>
{%- endfor %}<|assistant|>"""
FORGETFUL = """\
{%- for m in messages %}{% if m.role != 'system' or loop.first %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endif %}
{%- endfor %}<|assistant|>"""
SYSTEMLESS = """\
{%- for m in messages %}{% if m.role == 'system' %}{{ raise_exception('No system role.') }}{% endif %}
<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>"""
BACKENDS = ("llama_server", "llama_cpp", "ct2")


def start_engine(backend: str, folder: Path, template: str) -> Worker:
    """One whose model has this chat template; not ready yet."""
    if backend == "ct2":
        make_ct2(folder / "model", template=template)
        return worker_engines.start(backend, folder / "log", "--model", str(folder / "model"), token=TOKEN)
    vocabulary = make_vocabulary()
    write_gguf(folder / "model", vocabulary, make_weights(vocabulary), CONTEXT, template)
    if backend == "llama_cpp":
        return worker_engines.start(backend, folder / "log", "--model", str(folder / "model"), token=TOKEN)
    installed_engines.needed("binary")
    return installed_engines.started("binary", folder, "m", folder / "model", token=TOKEN)


async def probe_system_first(backend: str, worker: Worker) -> bool | None:
    """What the controller learns of the engine once it is ready."""
    declared = ENGINES[backend]
    definition = declared.definition.model_validate({"backend": backend, "model_path": "m.gguf"})
    target = ProbeTarget(f"http://127.0.0.1:{worker.port}", declared.describe_probe(definition), TOKEN)
    async with aiohttp.ClientSession() as session:
        prober = Prober(session, interval_s=3600, timeout_s=30, wake=lambda: None, clock=time.time)
        prober.track_targets({"m-0": target})
        try:
            await until("it is ready", lambda: prober.get_health("m-0").ready_since is not None)
            return prober.get_health("m-0").system_first
        finally:
            await prober.close()


@pytest.fixture(scope="module", params=BACKENDS)
def strict(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Worker]]:
    backend: str = request.param
    with start_engine(backend, tmp_path_factory.mktemp(backend), STRICT) as worker:
        yield backend, worker.ready()


async def test_every_family_gets_an_answer(strict: tuple[str, Worker]) -> None:
    backend, worker = strict
    assert await probe_system_first(backend, worker) is True
    declared = ENGINES[backend]
    definition = declared.definition.model_validate({"backend": backend, "model_path": "m.gguf"})
    url = f"http://127.0.0.1:{worker.port}"
    served_name = "inner-m" if backend == "llama_server" else "demo"
    made = route("m", [url], token=TOKEN, served_name=served_name, apis=declared.list_apis(definition))
    late: Any = [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "system", "content": "Be brief."},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "Go on."},
    ]
    developer: Any = [{**message, "role": message["role"].replace("system", "developer")} for message in late]
    async with gateway_harness() as gateway:
        await gateway.publish(made.model_copy(update={"backend": backend, "system_first": True}))
        async with (
            anthropic.AsyncAnthropic(base_url=gateway.url, api_key="none", max_retries=0) as claude,
            openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as gpt,
        ):
            message = await claude.messages.create(model="m", max_tokens=50, system="You help.", messages=late)
            assert message.content[0].model_dump()["text"] == SENTENCE
            counted = await claude.messages.count_tokens(model="m", system="You help.", messages=late)
            assert counted.input_tokens == message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)
            items: Any = [{**each, "content": "Hi"} if each is developer[0] else each for each in developer]
            response = await gpt.responses.create(model="m", instructions="You help.", input=items)
            assert response.output_text == SENTENCE
            for messages in (late, developer):
                answer = await gpt.chat.completions.create(model="m", messages=messages)
                assert answer.choices[0].message.content == SENTENCE


@pytest.mark.parametrize(
    ("template", "expected"),
    [(CHAT_TEMPLATE, False), (FORGETFUL, True), (SYSTEMLESS, False)],
    ids=["takes-all", "forgets", "takes-none"],
)
async def test_what_the_controller_learns_of_other_templates(tmp_path: Path, template: str, expected: bool) -> None:
    with start_engine("ct2", tmp_path, template) as worker:
        assert await probe_system_first("ct2", worker.ready()) is expected
