"""Coding agents' requests, one after the other: to an engine, each goes on with what the one before said, and changes
nothing of it. Engines have that in their caches."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.protocols.api_matrix import serving_option
from gateway.protocols.common.request import parse_request
from tests.fakes.fake_controller import route
from tests.support.coding_agents import AGENTS
from tests.support.responses import context

ANSWERS = [f"Step {number}." for number in range(16)]


@pytest.mark.parametrize("system_first", [False, True], ids=["any-template", "strict-template"])
@pytest.mark.parametrize("backend", ["llama_server", "vllm_serve", "ct2", "openai_remote"])
@pytest.mark.parametrize("name", AGENTS)
def test_what_was_sent_before_is_never_changed(name: str, backend: str, system_first: bool) -> None:
    agent = AGENTS[name](scale=0.02)
    extra_fields = () if backend == "openai_remote" else None
    model = route(
        "m", ["http://x"], apis=("/v1/chat/completions",), system_first=system_first, extra_fields=extra_fields
    ).model_copy(update={"backend": backend})
    before: dict[str, Any] | None = None
    for turn in range(len(ANSWERS) + 1):
        request = parse_request(json.dumps(agent.build_request("m", ANSWERS[:turn])).encode(), may_stream=True)
        request.state = context()
        dialect = serving_option(agent.path.partition("?")[0], request, model).dialect
        dialect.check_request(request, model)
        sent = json.loads(dialect.engine_body(request, model, as_stream=False))
        late_roles = {message["role"] for message in sent["messages"][1:]}
        assert not (system_first and "system" in late_roles)
        if before is not None:
            messages, messages_before = sent.pop("messages"), before.pop("messages")
            assert messages[: len(messages_before)] == messages_before
            same = {field for field in sent if field not in ("user", "client_metadata")}
            assert {field: sent[field] for field in same} == {field: before[field] for field in same}
            sent["messages"] = messages
        before = sent
    assert ("system" in late_roles) is not system_first
