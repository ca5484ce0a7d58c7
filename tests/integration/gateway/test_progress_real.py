"""What a stream with `X-Progress` is told by a real llama-server, which reads a long prompt."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support.installed_engines import Kind, started
from tests.support.resumed_streams import CHAT
from tests.support.worker_process import Worker
from worker.clockwork import make_model

pytestmark = [pytest.mark.engines, pytest.mark.embedded]

TOKEN = "replica-token"
CONTEXT = 32768
WORDS = "the quick brown fox " * 1000
FAMILIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": WORDS}]},
    "/v1/completions": {"prompt": WORDS, "max_tokens": 8},
    "/v1/responses": {"input": WORDS, "store": False},
    "/v1/messages": {"messages": [{"role": "user", "content": WORDS}], "max_tokens": 64},
    "/completion": {"prompt": WORDS, "n_predict": 8},
}


@pytest.fixture(scope="module")
def engine(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """A llama-server with one slot, which reads prompts in batches of 256 tokens."""
    folder = tmp_path_factory.mktemp("engine")
    make_model(folder / "m.gguf", context=CONTEXT)
    flags = ("--ctx-size", str(CONTEXT), "--parallel", "1", "--batch-size", "256", "--ubatch-size", "256")
    with started(kind, folder, "m", folder / "m.gguf", *flags, token=TOKEN) as made:
        yield made.ready()


@pytest.fixture
async def gateway(engine: Worker) -> AsyncIterator[GatewayHarness]:
    apis = ("/v1/chat/completions", "/v1/completions", "/completion")
    model = route("m", [f"http://127.0.0.1:{engine.port}"], token=TOKEN, served_name="inner-m", apis=apis)
    async with gateway_harness() as built:
        await built.publish(model.model_copy(update={"backend": "llama_server"}))
        yield built


async def stream(gateway: GatewayHarness, path: str, headers: dict[str, str], **fields: Any) -> tuple[list[Any], bytes]:
    """What the comments of a stream tell, and the stream without them."""
    body = {"model": "m", "stream": True, "temperature": 0, **FAMILIES[path], **fields}
    reply = await gateway.post(path, body, headers=headers)
    assert reply.status == 200
    parts = reply.content.split(b"\n\n")
    start = b": progress "
    comments = [json.loads(part.removeprefix(start)) for part in parts if part.startswith(start)]
    return comments, b"\n\n".join(part for part in parts if not part.startswith(start))


@pytest.mark.parametrize("path", FAMILIES)
async def test_the_share_of_a_long_prompt(gateway: GatewayHarness, path: str) -> None:
    comments, rest = await stream(gateway, path, {"X-Progress": "true"}, cache_prompt=False)
    first, *figures = comments
    assert first == {"stage": "prefill", "model": "m"}
    total = figures[0]["prompt_tokens"]
    assert total >= 4000
    ends = [(each["processed_tokens"], each["progress"]) for each in (figures[0], figures[-1])]
    assert ends == [(0, 0.0), (total, 1.0)]
    shares = [each["progress"] for each in figures]
    assert shares == sorted(shares)
    assert b"prompt_progress" not in rest


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_beside_its_progress_a_stream_is_the_one_that_others_get(gateway: GatewayHarness, path: str) -> None:
    def chunks(stream: bytes) -> list[Any]:
        """What it says, without what no two streams have in common."""
        events = [json.loads(part.removeprefix(b"data: ")) for part in stream.split(b"\n\n") if b"data: {" in part]
        return [{name: each[name] for name in each.keys() - {"id", "created", "timings"}} for each in events]

    asked = {"stream_options": {"include_usage": True}, "cache_prompt": False}
    comments, plain = await stream(gateway, path, {}, **asked)
    assert not comments
    told, rest = await stream(gateway, path, {"X-Progress": "true"}, **asked)
    assert told
    assert chunks(rest) == chunks(plain) != []


async def test_what_the_cache_holds_counts_as_read(gateway: GatewayHarness) -> None:
    await stream(gateway, CHAT, {})
    longer = [{"role": "user", "content": WORDS + "jumps over a lazy dog " * 200}]
    comments, rest = await stream(
        gateway, CHAT, {"X-Progress": "true"}, messages=longer, stream_options={"include_usage": True}
    )
    first, last = comments[1], comments[-1]
    assert first["cached_tokens"] == first["processed_tokens"] >= 4000
    assert 0 < first["progress"] < last["progress"] == 1
    [event] = [part for part in rest.split(b"\n\n") if b'"usage":{' in part]
    usage = json.loads(event.removeprefix(b"data: "))["usage"]
    counts = usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
    assert counts == (last["prompt_tokens"], last["cached_tokens"])
