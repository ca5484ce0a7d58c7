"""Sessions of coding agents on real engines: from the second turn on, the engine has nearly all of the prompt in its
cache, by its own count. vLLM takes part in the campaign alone, for its start takes 40 s; test_vllm has three turns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from controller.engines import ENGINES
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import gateway_harness
from tests.support import installed_engines
from tests.support.campaign import RecordProperty, campaign_count, record_figure
from tests.support.clockwork_folders import make_hf, widen_context
from tests.support.coding_agents import AGENTS, play_session
from tests.support.installed_engines import ON_CPU, start_worker
from tests.support.worker_process import Worker
from worker.clockwork import make_vocabulary, make_weights, write_gguf

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]

TOKEN = "replica-token"
TURNS = campaign_count(3, 16)
SCALE = campaign_count(10, 100) / 100
CONTEXT = 65536
LEAST_SHARE = 0.9
TEMPLATE = """\
{%- if tools %}<|system|>{{ tools | tojson }}<|end|>{% endif %}
{%- for m in messages %}
{%- if m.role == 'system' and not loop.first %}{{ raise_exception('System message must be first.') }}{% endif %}
<|{{ m.role }}|>{{ m.reasoning_content or '' }}{{ m.content }}
{%- for t in m.tool_calls or [] %}<tool_call>{{ t | tojson }}</tool_call>{% endfor %}<|end|>{% endfor -%}
<|assistant|>"""
"""Tools, thoughts and calls are in the prompt, and system messages come first."""
BACKENDS = ["llama_server", *["vllm"] * (campaign_count(0, 1))]
VLLM_FIELDS: dict[str, Any] = {
    "vllm_max_model_len": CONTEXT,
    "vllm_tool_call_parser": "hermes",
    "extra_args": ["--enable-prompt-tokens-details"],
}


@contextmanager
def start_engine(backend: str, folder: Path) -> Iterator[Worker]:
    """The demo model on this engine, with room for a whole session."""
    if backend == "vllm":
        make_hf(folder / "m", template=TEMPLATE)
        widen_context(folder / "m", CONTEXT)
        with start_worker(folder, "m", TOKEN, **VLLM_FIELDS) as worker:
            yield worker.ready()
        return
    installed_engines.needed("binary")
    vocabulary = make_vocabulary()
    write_gguf(folder / "m.gguf", vocabulary, make_weights(vocabulary), CONTEXT, TEMPLATE)
    flags = ("--ctx-size", str(CONTEXT), "--no-warmup")
    with installed_engines.started("binary", folder, "m", folder / "m.gguf", *flags, token=TOKEN) as worker:
        yield worker.ready()


@pytest.fixture(scope="module", params=BACKENDS)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Worker]]:
    backend: str = request.param
    with start_engine(backend, tmp_path_factory.mktemp(backend)) as worker:
        yield backend, worker


@pytest.mark.parametrize("name", AGENTS)
async def test_the_engine_has_what_was_sent_before(
    engine: tuple[str, Worker], name: str, record_property: RecordProperty
) -> None:
    backend, worker = engine
    fields = {"backend": backend, "model_path": "m.gguf", **({**ON_CPU, **VLLM_FIELDS} if backend == "vllm" else {})}
    definition = ENGINES[backend].definition.model_validate(fields)
    made = route(
        "m",
        [f"http://127.0.0.1:{worker.port}"],
        token=TOKEN,
        served_name="inner-m" if backend == "llama_server" else "m",
        apis=ENGINES[backend].list_apis(definition),
        system_first=True,
    )
    async with gateway_harness() as gateway:
        await gateway.publish(made.model_copy(update={"backend": backend}))
        session = await play_session(gateway, AGENTS[name](SCALE), "m", TURNS)
    block = re.search(r'vllm:cache_config_info\{.*?block_size="(\d+)"', worker.request("GET", "/metrics")[1])
    blocks = f", in blocks of {block[1]} tokens" if block else ""
    record_figure(record_property, f"{name}, {backend}{blocks}", str(session))
    assert min(session.shares[1:]) >= LEAST_SHARE, str(session)
