"""Putting an engine to sleep and waking it, over a wire: the order of the calls, and what is said of a failure."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from controller.engines.base import SleepCalls
from controller.observe.sleep import HttpSleeper, SleepError, SleepTarget, read_canary, says_asleep
from tests.support.ports import free_port

CALLS = SleepCalls(
    sleep=(("/pause", None), ("/sleep?level=2", {"mode": "wait"})),
    wake=(("/wake_up?tags=weights", None), ("/collective_rpc", {"method": "reload_weights"}), ("/wake_up", None)),
    state_path="/is_sleeping",
    canary_path="/v1/completions",
    canary_body={"prompt": "2, 3, 5,", "max_tokens": 2},
    keeps_weights=False,
)
ASLEEP = [("POST", "/pause", None), ("POST", "/sleep?level=2", {"mode": "wait"}), ("GET", "/is_sleeping", None)]
WOKEN = [
    ("POST", "/wake_up?tags=weights", None),
    ("POST", "/collective_rpc", {"method": "reload_weights"}),
    ("POST", "/wake_up", None),
    ("POST", "/v1/completions", {"prompt": "2, 3, 5,", "max_tokens": 2}),
]


@dataclass
class Engine:
    """Notes what it is called, and answers as the test wants."""

    seen: list[tuple[str, str, Any]] = field(default_factory=list)
    authorizations: set[str | None] = field(default_factory=set)
    answers: dict[str, web.Response | None] = field(default_factory=dict)
    """By path; None: the connection breaks."""
    says: dict[str, str] = field(
        default_factory=lambda: {
            "/is_sleeping": '{"is_sleeping": true}',
            "/v1/completions": '{"choices": [{"text": " 7, 11"}]}',
        }
    )

    pause_s: float = 0.0

    async def answer(self, request: web.Request) -> web.Response:
        await asyncio.sleep(self.pause_s)
        text = await request.text()
        self.seen.append((request.method, request.path_qs, json.loads(text) if text else None))
        self.authorizations.add(request.headers.get("Authorization"))
        answer = self.answers.get(request.path, web.Response(text=self.says.get(request.path, "")))
        if answer is None:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return answer


@contextlib.asynccontextmanager
async def sleeping(engine: Engine, token: str | None = "the-token") -> AsyncIterator[tuple[HttpSleeper, SleepTarget]]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", engine.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    [(_, port)] = runner.addresses
    async with aiohttp.ClientSession() as session:
        try:
            yield HttpSleeper(session), SleepTarget(f"http://127.0.0.1:{port}", CALLS, token)
        finally:
            await runner.cleanup()


@pytest.mark.parametrize(("token", "header"), [("the-token", "Bearer the-token"), (None, None)])
async def test_each_call_is_made_in_its_order_with_its_body_and_the_engine_s_token(
    token: str | None, header: str | None
) -> None:
    engine = Engine()
    async with sleeping(engine, token) as (sleeper, target):
        await sleeper.put_to_sleep(target)
        assert engine.seen == ASLEEP
        engine.seen.clear()
        assert await sleeper.wake_engine(target) == " 7, 11"
        assert engine.seen == WOKEN
    assert engine.authorizations == {header}
    assert "the-token" not in repr(target)


async def test_a_call_that_fails_is_the_last_one_and_its_answer_is_told() -> None:
    engine = Engine(answers={"/sleep": web.Response(status=500, text="x" * 300)})
    async with sleeping(engine) as (sleeper, target):
        with pytest.raises(SleepError) as told:
            await sleeper.put_to_sleep(target)
        assert str(told.value) == f"/sleep?level=2: HTTP 500: {'x' * 200}"
        assert engine.seen == ASLEEP[:2]
        engine.seen.clear()
        engine.answers = {"/collective_rpc": web.Response(status=404, text="no such route")}
        with pytest.raises(SleepError, match=r"^/collective_rpc: HTTP 404: no such route$"):
            await sleeper.wake_engine(target)
        assert engine.seen == WOKEN[:2]
        engine.answers = {"/v1/completions": web.Response(status=401, text="Unauthorized")}
        with pytest.raises(SleepError, match=r"^/v1/completions: HTTP 401: Unauthorized$"):
            await sleeper.wake_engine(target)


async def test_all_calls_of_a_sleep_or_a_wake_have_one_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.observe.sleep.TIMEOUT_S", 0.25)
    engine = Engine(pause_s=0.1)
    async with sleeping(engine) as (sleeper, target):
        for change in (sleeper.put_to_sleep, sleeper.wake_engine):
            with pytest.raises(SleepError, match=r"^it has not ended within 0.25 s$"):
                await change(target)


async def test_an_engine_that_breaks_off_or_is_not_there_is_named_with_the_call() -> None:
    engine = Engine(answers={"/wake_up": None})
    async with sleeping(engine) as (sleeper, target):
        with pytest.raises(SleepError, match=r"^/wake_up\?tags=weights: "):
            await sleeper.wake_engine(target)
        gone = SleepTarget(f"http://127.0.0.1:{free_port()}", CALLS)
        with pytest.raises(SleepError, match=r"^/pause: Cannot connect to host"):
            await sleeper.put_to_sleep(gone)


@pytest.mark.parametrize("state", ['{"is_sleeping": false}', "{}", "[]", '{"is_sleeping": "true"}', ""])
async def test_an_engine_that_does_not_say_that_it_sleeps_does_not(state: str) -> None:
    engine = Engine()
    engine.says["/is_sleeping"] = state
    async with sleeping(engine) as (sleeper, target):
        with pytest.raises(SleepError, match=r"^it took the call and is awake$"):
            await sleeper.put_to_sleep(target)


async def test_a_canary_without_text_is_no_wake() -> None:
    engine = Engine()
    engine.says["/v1/completions"] = '{"choices": [{"text": ""}]}'
    async with sleeping(engine) as (sleeper, target):
        with pytest.raises(SleepError, match=r"^its answer to the canary has no text$"):
            await sleeper.wake_engine(target)


@pytest.mark.parametrize(
    ("text", "asleep"),
    [
        ('{"is_sleeping": true}', True),
        ('{"is_sleeping": false, "more": 1}', False),
        ('{"is_sleeping": 1}', None),
        ('{"is_sleeping": null}', None),
        ("true", None),
        ("[" * 100_000, None),
        ("<html>", None),
    ],
)
def test_what_an_engine_says_of_its_sleep(text: str, asleep: bool | None) -> None:
    assert says_asleep(text) is asleep


@pytest.mark.parametrize(
    ("text", "canary"),
    [
        ('{"choices": [{"text": " 7"}, {"text": "other"}]}', " 7"),
        ('{"choices": [{"text": " \\n"}]}', " \n"),
        ('{"choices": [{"text": ""}]}', None),
        ('{"choices": [{"text": 7}]}', None),
        ('{"choices": [{"message": {"content": "7"}}]}', None),
        ('{"choices": []}', None),
        ('{"choices": ["7"]}', None),
        ('{"choices": {"0": {"text": "7"}}}', None),
        ('{"choices": null}', None),
        ('[{"text": "7"}]', None),
        ("{" * 100_000, None),
        ("", None),
    ],
)
def test_what_an_answer_to_the_canary_says(text: str, canary: str | None) -> None:
    assert read_canary(text) == canary
