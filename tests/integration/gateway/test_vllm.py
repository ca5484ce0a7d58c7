"""vLLM in a worker process, behind the gateway, through the openai package: thoughts, calls, usage and errors.

One engine serves all of these tests, in their order, and the last ends it; it takes 40 s to start.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from controller.engines import ENGINES
from controller.observe.health import (
    LATE_SYSTEM,
    LEADING_SYSTEM,
    judge_rendering,
    metric_sum,
    parse_cache_tokens,
    parse_figures,
)
from controller.state import AppliedFigures
from gateway.metrics.engine_exposition import rename
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support.chat_engines import CALLS, SAYS, WORKERS, tool
from tests.support.clockwork_folders import make_hf, widen_context
from tests.support.coding_agents import AGENTS, play_session
from tests.support.installed_engines import ON_CPU, STARTS_S, VllmWorker, start_worker
from tests.support.overflow_clients import check_overflow
from tests.support.prometheus_server import list_expressions
from tests.support.resumed_streams import check_every_cut
from tests.support.stream_schemas import judge_streams
from tests.support.worker_process import eventually

pytestmark = [pytest.mark.engines, pytest.mark.vllm, pytest.mark.timeout(600)]

TOKEN = "replica-token"
CONTEXT = 16384
FIELDS: dict[str, Any] = {
    "vllm_max_model_len": CONTEXT,
    "vllm_reasoning_parser": "deepseek_r1",
    "vllm_tool_call_parser": "hermes",
    "thinking_modes": ["enabled", "disabled"],
    "extra_args": ["--enable-prompt-tokens-details"],
}
HI: Any = [{"role": "user", "content": "Hi"}]
STRICT = """\
{%- for m in messages %}{% if m.role == 'system' and not loop.first %}
{{- raise_exception('System message must be at the beginning.') }}{% endif %}{% endfor %}"""
WEATHER = tool("get_weather", "Oslo", "Rome")
CALLED = [json.loads(call) for call in CALLS]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmWorker]:
    folder = tmp_path_factory.mktemp("vllm")
    make_hf(folder / "thinks", SAYS, STRICT + WORKERS)
    widen_context(folder / "thinks", CONTEXT)
    with start_worker(folder, "thinks", TOKEN, **FIELDS) as worker:
        assert isinstance(worker, VllmWorker)
        yield worker.ready()


@pytest.fixture
async def gateway(engine: VllmWorker) -> AsyncIterator[GatewayHarness]:
    declared = ENGINES["vllm"]
    definition = declared.definition.model_validate({"backend": "vllm", "model_path": "thinks", **ON_CPU, **FIELDS})
    made = route(
        "thinks",
        [f"http://127.0.0.1:{engine.port}"],
        token=TOKEN,
        apis=declared.list_apis(definition),
        capabilities=declared.derive_capabilities(definition),
    )
    more = {"backend": "vllm", "thinking_control": declared.thinking_control(definition), "system_first": True}
    async with gateway_harness() as built:
        await built.publish(made.model_copy(update=more))
        yield built


@pytest.fixture
async def client(gateway: GatewayHarness) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="client-key", max_retries=0) as made:
        yield made


def thought_in(part: Any) -> str:
    """What a message, or a part of one, tells of thoughts: the same under both names."""
    told = part.model_extra or {}
    assert told.get("reasoning") == told.get("reasoning_content")
    return told.get("reasoning") or ""


async def test_thoughts_text_and_calls(client: openai.AsyncOpenAI) -> None:
    response: Any = await client.chat.completions.create(model="thinks", messages=HI, temperature=0, tools=[WEATHER])
    message = response.choices[0].message
    assert (thought_in(message).strip(), (message.content or "").strip()) == ("well", "Sure.")
    calls = [call.function for call in message.tool_calls]
    assert [{"name": call.name, "arguments": json.loads(call.arguments)} for call in calls] == CALLED
    assert (response.model, response.choices[0].finish_reason) == ("thinks", "tool_calls")
    assert response.usage.completion_tokens == len(SAYS) + 1


async def test_the_same_as_a_stream(client: openai.AsyncOpenAI) -> None:
    options: Any = {"temperature": 0, "tools": [WEATHER], "stream_options": {"include_usage": True}}
    stream: Any = await client.chat.completions.create(model="thinks", messages=HI, stream=True, **options)
    chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(thought_in(delta) for delta in deltas).strip() == "well"
    assert "".join(delta.content or "" for delta in deltas).strip() == "Sure."
    calls: dict[int, list[str]] = {}
    for delta in deltas:
        for part in delta.tool_calls or []:
            assert part.function is not None
            names, arguments = calls.setdefault(part.index, ["", ""])
            calls[part.index] = [names + (part.function.name or ""), arguments + (part.function.arguments or "")]
    made = [{"name": name, "arguments": json.loads(arguments)} for name, arguments in calls.values()]
    assert made == CALLED
    assert [chunk.usage.completion_tokens for chunk in chunks if chunk.usage] == [len(SAYS) + 1]
    assert {chunk.model for chunk in chunks} == {"thinks"}


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_cut_answer_is_continued_as_text(client: openai.AsyncOpenAI, is_stream: bool) -> None:
    """vLLM's parser of thoughts would take the rest of the answer for thoughts."""
    cut = {"type": "message", "role": "assistant", "status": "incomplete", "content": "Sure. "}
    body: Any = {"model": "thinks", "input": [*HI, cut], "temperature": 0}
    if is_stream:
        async with client.responses.stream(**body) as stream:
            response = await stream.get_final_response()
    else:
        response = await client.responses.create(**body)
    told: list[Any] = [item.to_dict() for item in response.output]
    rest = "".join(SAYS[SAYS.index("Sure. ") + 1 :])
    assert [(item["type"], item["content"][0]["text"]) for item in told] == [("message", rest)]


async def test_streams_are_cut_and_read_on(gateway: GatewayHarness) -> None:
    await check_every_cut(gateway, "thinks")


async def test_thinking_can_be_switched_off(client: openai.AsyncOpenAI) -> None:
    response = await client.chat.completions.create(
        model="thinks", messages=HI, temperature=0, extra_body={"thinking": "disabled"}
    )
    assert "well" not in thought_in(response.choices[0].message) + (response.choices[0].message.content or "")


async def test_a_response_with_thoughts_and_calls(client: openai.AsyncOpenAI) -> None:
    function: Any = {"type": "function", **WEATHER["function"]}
    response: Any = await client.responses.create(model="thinks", input="Hi", temperature=0, tools=[function])
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
    assert response.output_text.strip() == "Sure."
    assert [json.loads(item.arguments) for item in response.output[2:]] == [each["arguments"] for each in CALLED]


async def test_the_first_event_of_messages_tells_the_prompts_tokens(gateway: GatewayHarness) -> None:
    async with (
        anthropic.AsyncAnthropic(base_url=gateway.url, api_key="client-key", max_retries=0) as client,
        client.messages.stream(model="thinks", max_tokens=20, messages=HI) as stream,
    ):
        events = [event async for event in stream]
    start, end = events[0], events[-1]
    assert start.type == "message_start"
    assert end.type == "message_stop"
    usage = end.message.usage
    assert start.message.usage.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0) > 0


@pytest.mark.parametrize("name", AGENTS)
async def test_it_has_what_a_coding_agent_sent_before_in_its_cache(gateway: GatewayHarness, name: str) -> None:
    session = await play_session(gateway, AGENTS[name](scale=0.12), "thinks", 3)
    assert min(session.shares[1:]) >= 0.9, str(session)


async def test_system_messages_among_the_others(client: openai.AsyncOpenAI) -> None:
    late: Any = [*HI, {"role": "system", "content": "Be brief."}]
    answer = await client.chat.completions.create(model="thinks", messages=late, temperature=0)
    assert answer.choices[0].message.content
    response = await client.responses.create(model="thinks", input=[*HI, {"role": "developer", "content": "Be brief."}])
    assert "Sure." in response.output_text


async def test_every_event_of_every_family_is_what_its_types_say(gateway: GatewayHarness) -> None:
    assert await judge_streams(gateway, "thinks", WEATHER) == ["reasoning", "message", "function_call", "function_call"]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"temperature": "hot"}, "temperature", "valid number"),
        ({"max_tokens": 100_000}, "max_tokens", str(CONTEXT)),
        ({"messages": [{"role": "user", "content": "x" * 2 * CONTEXT}]}, "input_tokens", str(CONTEXT)),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "content"),
        ({"top_p": 7}, "top_p", "top_p"),
    ],
)
async def test_fields_that_vllm_refuses_are_named(
    client: openai.AsyncOpenAI, fields: dict[str, Any], param: str | None, words: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(**{"model": "thinks", "messages": HI, **fields})
    assert words in caught.value.message
    code = "context_length_exceeded" if param == "input_tokens" else "engine_error"
    assert (caught.value.param, caught.value.code) == (param, code)


async def test_a_prompt_that_is_too_long_is_told_as_each_client_knows_it(gateway: GatewayHarness) -> None:
    await check_overflow(gateway, "thinks", 2 * CONTEXT, CONTEXT)
    # One that vLLM does not even count.
    await check_overflow(gateway, "thinks", 64 * CONTEXT, CONTEXT)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"guided_choice": ["yes"]}, "yes"),
        ({"structured_outputs": {"choice": ["yes"]}}, "yes"),
        ({"guided_regex": "(ja){2}"}, "jaja"),
        ({"guided_json": {"const": "Oslo"}}, '"Oslo"'),
        ({"json_schema": {"const": "Oslo"}}, '"Oslo"'),
        ({"grammar": 'root ::= "yes"'}, "yes"),
    ],
)
async def test_llama_cpps_words_and_vllms_older_ones_are_followed(
    client: openai.AsyncOpenAI, fields: dict[str, Any], text: str
) -> None:
    # With a parser of thoughts, vLLM holds to a form what comes behind them.
    response = await client.chat.completions.create(model="thinks", messages=HI, temperature=0, extra_body=fields)
    assert (thought_in(response.choices[0].message).strip(), response.choices[0].message.content) == ("well", text)


def test_what_the_controller_reads(engine: VllmWorker) -> None:
    vllm = ENGINES["vllm"]
    definition = vllm.definition.model_validate({"backend": "vllm", "model_path": "m"})
    probe = vllm.describe_probe(definition)
    assert engine.request("POST", probe.ready_path, probe.ready_body)[0] == 200
    assert probe.template_path is not None
    renderings = [
        judge_rendering(*engine.request("POST", probe.template_path, body)) for body in (LATE_SYSTEM, LEADING_SYSTEM)
    ]
    assert renderings == ["refused", "taken"]
    assert probe.metrics_path is not None
    figures = engine.request("GET", probe.metrics_path)[1]
    assert metric_sum(figures, probe.busy_metrics) == 0
    for name in (*probe.busy_metrics, *probe.progress_metrics):
        assert metric_sum(figures, [name]) is not None, name
    assert probe.cache_metric is not None
    assert (parse_cache_tokens(figures, probe.cache_metric) or 0) > CONTEXT
    assert probe.preemption_metric is not None
    assert metric_sum(figures, [probe.preemption_metric]) == 0
    assert vllm.parse_progress(engine.log) == 1.0
    # Paths that are said to be there are, all of them.
    for path in vllm.list_apis(definition):
        assert engine.request("POST", path, {})[0] == 400, path


def test_it_reports_what_it_applies(engine: VllmWorker) -> None:
    vllm = ENGINES["vllm"]
    fields = {"backend": "vllm", "model_path": "m", **ON_CPU, **FIELDS}
    declared = vllm.definition.model_validate(fields)
    applied = AppliedFigures()
    for path in vllm.describe_probe(declared).figure_paths:
        applied = applied.merge_figures(parse_figures(path, engine.request("GET", path)[1]))
    assert applied.context_length == CONTEXT
    assert applied.kv_cache_bytes == ON_CPU["vllm_kv_cache_memory_bytes"]
    assert applied.speculates is None, "it does not, and does not say so"
    assert None not in (applied.cache_type_k, applied.prefix_caching, applied.gpu_share)
    assert vllm.compare_figures(declared, applied) == ()
    gaps = [
        ("vllm_max_model_len", CONTEXT // 2, CONTEXT),
        ("vllm_kv_cache_dtype", "fp8", applied.cache_type_k),
        ("vllm_kv_cache_memory_bytes", 2**20, 2**28),
        ("vllm_enable_prefix_caching", not applied.prefix_caching, applied.prefix_caching),
    ]
    otherwise = vllm.definition.model_validate(fields | {field: declared for field, declared, _ in gaps})
    assert [(gap.field, gap.declared, gap.applied) for gap in vllm.compare_figures(otherwise, applied)] == gaps


async def test_the_gateway_serves_its_metrics_under_the_names_that_dashboards_use(gateway: GatewayHarness) -> None:
    used = {name for each in list_expressions() for name in re.findall(r"vllm:\w+", each.expr)}
    assert used
    page = (await gateway.get("/metrics/engines")).text
    served = {
        name
        for name, labels in re.findall(r"^(vllm:\w+)\{(.*)\} ", page, re.MULTILINE)
        if 'model="thinks"' in labels and 'replica="thinks-0"' in labels
    }
    assert used - served == set()
    assert [name for name in served if rename(name) != name] == [], "an older name is served as the newest one"


def test_sigterm_ends_it_and_all_of_its_processes(engine: VllmWorker) -> None:
    assert len(engine.family()) >= 4, "the launcher, the server, the engine's core and a worker"
    assert engine.stop(signal.SIGTERM) == 0


def test_a_launcher_that_is_killed_while_it_loads_takes_all_processes_along(tmp_path: Path) -> None:
    make_hf(tmp_path / "m")
    with start_worker(tmp_path, "m", TOKEN) as worker:
        eventually("the engine's core starts", lambda: len(worker.family()) >= 4, STARTS_S)
        assert worker.stop(signal.SIGKILL) == -signal.SIGKILL
