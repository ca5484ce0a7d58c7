"""Odd values of every field of the APIs' requests, through a real gateway to a mock engine: served, or refused by the
client's own field, and never a failure."""

from __future__ import annotations

import itertools
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import pytest

from gateway.protocols.common.request_fields import REQUEST_FIELDS
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.support.campaign import campaign_count

HI: Final = [{"role": "user", "content": "Hi"}]
FORMS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "chat": ("/v1/chat/completions", {"messages": HI}),
    "completions": ("/v1/completions", {"prompt": "Hi"}),
    "embeddings": ("/v1/embeddings", {"input": "Hi"}),
    "responses": ("/v1/responses", {"input": "Hi"}),
    "messages": ("/v1/messages", {"messages": HI, "max_tokens": 5}),
}
"""API to its path and the least that a request must have."""


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


ODD: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, -1, 1.5, 10**30, "", "x", "\ud800", [], {}, [None], [[]], [{}], ["x"], {"type": "custom"}),
    *({"type": 5}, [{"type": "custom"}], [{"type": "web_search"}], [{"type": "function"}], {"x": nested(90)}),
    *([{"role": "function"}], [{"role": "assistant", "function_call": 5}], [{"role": "user", "content": nested(500)}]),
    *({"name": "x"}, {"type": "allowed_tools", "allowed_tools": {"tools": [5]}}, nested(900)),
)


MODELS: Final = (
    *((api, "all-llama_server") for api in FORMS),
    *((api, "chat-vllm_serve") for api in FORMS if api != "embeddings"),
    *(("chat", "all-ct2"), ("chat", "all-openai_remote"), ("messages", "all-openai_remote")),
)
"""API, and a model that is asked in it: of an engine with all APIs, or with chat completions alone."""


@pytest.fixture
async def gateway() -> AsyncIterator[GatewayHarness]:
    async with engines(1) as [engine], gateway_harness() as made:
        apis = {"all": (), "chat": ("/v1/chat/completions",)}
        parted = [model.split("-") for _, model in MODELS]
        await made.publish(*{
            "-".join(each): route("-".join(each), [engine.url], apis=apis[each[0]], backend=each[1]) for each in parted
        }.values())  # fmt: skip
        yield made


async def test_no_value_of_a_field_is_a_failure(gateway: GatewayHarness) -> None:
    """Each field of each API and model with a few of the odd values, which take turns."""
    values = itertools.cycle(ODD)
    for api, model in MODELS:
        path, least = FORMS[api]
        for name in REQUEST_FIELDS[api]:
            for value in itertools.islice(values, campaign_count(2, 6)):
                asked = {"model": model, **least, name: value}
                reply = await gateway.post(path, asked)
                assert reply.status == 200 or 400 <= reply.status < 500, (asked, reply.text)
                if reply.status >= 400 and reply.code not in ("invalid_json", "unknown_model"):
                    param = reply.error["param"]
                    assert re.split(r"[.\[]", str(param))[0] in asked, (asked, reply.text)
