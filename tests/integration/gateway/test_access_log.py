"""The access log: a line of JSON for each inference request of a client, never of its content; off by default."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from gateway.exchange import dispatcher
from gateway.exchange.hooks import NO_HOOKS
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import engines, gateway_harness
from tests.support.queueing import key

CHAT = "/v1/chat/completions"
ASKED: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "a secret question"}]}
FIELDS = ["time", "request_id", "key", "route", "model", "tokens_in", "tokens_out", "ms", "status"]


async def test_each_request_is_a_line_of_the_access_log_without_its_content(tmp_path: Path) -> None:
    file = tmp_path / "logs" / "access.log"
    async with engines(1) as [engine], gateway_harness(state=tmp_path, access_log_mib=1) as gateway:
        await gateway.publish(route("m", [engine.url]), keys=(key("alice"),))
        for body, secret in (
            (ASKED, "secret-alice"),
            (ASKED | {"stream": True, "stream_options": {"include_usage": True}}, "secret-alice"),
            (ASKED | {"model": "no such model"}, "secret-alice"),
            (ASKED, "wrong"),
        ):
            await gateway.post(CHAT, body, key=secret)
        await gateway.get("/v1/models", key="secret-alice")
        await gateway.idle()
        text = file.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert all(list(line) == FIELDS for line in lines)
    assert "question" not in text
    assert "secret" not in text
    assert [(line["status"], line["key"], line["route"]) for line in lines] == [
        (200, "alice", CHAT), (200, "alice", CHAT), (404, "alice", CHAT), (401, None, CHAT),
    ]  # fmt: skip
    for line in lines[:2]:
        assert line["model"] == "m"
        assert line["tokens_in"] > 0
        assert line["tokens_out"] > 0
        assert line["ms"] > 0
        assert datetime.fromisoformat(line["time"]).tzinfo is not None
    assert "no such model" not in text, "what a client sends is its own"


async def test_without_the_setting_a_request_runs_none_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "describe_access", None)
    async with engines(1) as [engine], gateway_harness(state=tmp_path) as gateway:
        await gateway.publish(route("m", [engine.url]))
        assert (await gateway.post(CHAT, ASKED)).status == 200
        assert gateway.app.inference.access_hooks is NO_HOOKS
        await gateway.idle()
    assert not (tmp_path / "logs" / "access.log").exists()
