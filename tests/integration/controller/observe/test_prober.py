"""The prober against engines of its own wire."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from controller.engines.base import SleepCalls
from controller.engines.worker import worker_probe
from controller.observe.health import LATE_SYSTEM, LEADING_SYSTEM, MODELS_PATH
from controller.observe.prober import Prober, ProbeTarget
from controller.state import Health
from tests.support.wait import until


class Engine:
    """Answers what a probe asks; counts who asks for the models."""

    def __init__(self, models: Callable[[int], web.Response]) -> None:
        self._models = models
        self.asked = 0
        self.probed = 0
        self.figures: str | None = ""
        """None: the connection breaks where they are asked for."""
        self.renders: list[web.Response] = []
        """What it answers to conversations to render, one after the other; then nothing that tells anything."""
        self.rendered: list[Any] = []
        """The conversations that it was to render."""
        self.state = web.json_response({"is_sleeping": False})
        """What it says of its sleep."""
        self.canaries: list[Any] = []
        """The canaries that it was asked."""

    async def answer(self, request: web.Request) -> web.Response:
        """Anything."""
        if request.path == MODELS_PATH:
            self.asked += 1
            return self._models(self.asked)
        self.probed += request.path == "/health"
        if request.path == "/is_sleeping":
            return web.json_response(text=self.state.text, status=self.state.status)
        if request.path == "/v1/completions":
            self.canaries.append(await request.json())
            return web.json_response({"choices": [{"text": f"canary {len(self.canaries)}"}]})
        if request.path == "/apply-template":
            self.rendered.append(await request.json())
            return self.renders.pop(0) if self.renders else web.json_response({})
        if request.path == "/metrics":
            if self.figures is None:
                assert request.transport is not None
                request.transport.abort()
            return web.Response(text=self.figures)
        return web.json_response({})


@contextlib.asynccontextmanager
async def probed(
    engine: Engine, ready_since: float | None, interval_s: float = 0.01, *, sleep: SleepCalls | None = None
) -> AsyncIterator[tuple[Prober, list[None]]]:
    """A prober of `engine`, and a list that grows when it wakes the reconciler."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", engine.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    [(_, port)] = runner.addresses
    woken: list[None] = []
    async with aiohttp.ClientSession() as session:
        prober = Prober(session, interval_s=interval_s, timeout_s=5, wake=lambda: woken.append(None), clock=time.time)
        prober.track_targets({"m-0": ProbeTarget(f"http://127.0.0.1:{port}", worker_probe(), None, sleep, ready_since)})
        try:
            yield prober, woken
        finally:
            await prober.close()
            await runner.cleanup()


def listing(**model: Any) -> web.Response:
    """A list of one model."""
    return web.json_response({"object": "list", "data": [{"id": "m", "object": "model", **model}]})


@pytest.mark.parametrize("ready_since", [None, 5.0], ids=["fresh", "adopted"])
async def test_a_ready_engine_is_asked_once_for_its_context_length(ready_since: float | None) -> None:
    engine = Engine(lambda _: listing(meta={"n_ctx": 4096}))
    async with probed(engine, ready_since) as (prober, woken):
        await until("it is told", lambda: prober.get_health("m-0").figures.context_length == 4096)
        assert prober.get_health("m-0").health is Health.READY
        assert woken
        seen = engine.probed
        await until("it is probed on", lambda: engine.probed > seen + 3)
        assert (engine.asked, prober.get_health("m-0").figures.context_length) == (1, 4096)


async def test_it_is_told_when_the_engine_becomes_ready() -> None:
    async with probed(Engine(lambda _: listing(max_model_len=512)), None, interval_s=3600) as (prober, _):
        await until("it is ready", lambda: prober.get_health("m-0").health is Health.READY)
        assert prober.get_health("m-0").figures.context_length == 512


async def test_an_engine_that_could_not_tell_is_asked_again_and_one_that_does_not_tell_is_not() -> None:
    unwell = Engine(lambda time: listing(max_model_len=512) if time > 2 else web.Response(status=503))
    async with probed(unwell, None) as (prober, _):
        await until("it is told", lambda: prober.get_health("m-0").figures.context_length == 512)
        assert unwell.asked == 3
    silent = Engine(lambda _: listing())
    async with probed(silent, None) as (prober, _):
        await until("it is probed on", lambda: silent.probed > 5)
        assert (silent.asked, prober.get_health("m-0").figures.context_length) == (1, None)
        assert prober.get_health("m-0").health is Health.READY


@pytest.mark.parametrize("ready_since", [None, 5.0], ids=["fresh", "adopted"])
async def test_an_engine_is_asked_once_what_its_chat_template_takes(ready_since: float | None) -> None:
    engine = Engine(lambda _: listing())
    refusal = web.json_response({"error": {"message": "System message must be at the beginning."}}, status=400)
    busy, taken = web.Response(status=503), web.json_response({"prompt": "<|system|>7351<|user|>a"})
    engine.renders = [busy, refusal, taken]
    async with probed(engine, ready_since) as (prober, woken):
        await until("it is told", lambda: prober.get_health("m-0").system_first is True)
        assert woken
        seen = engine.probed
        await until("it is probed on", lambda: engine.probed > seen + 3)
        assert engine.rendered == [LATE_SYSTEM, LATE_SYSTEM, LEADING_SYSTEM]
        assert prober.get_health("m-0").system_first is True


async def test_an_engine_that_tells_nothing_of_its_chat_template_is_asked_once() -> None:
    engine = Engine(lambda _: listing())
    async with probed(engine, None) as (prober, _):
        await until("it is probed on", lambda: engine.probed > 5)
        assert (engine.rendered, prober.get_health("m-0").system_first) == ([LATE_SYSTEM], False)


async def test_an_engine_whose_figures_cannot_be_read_is_ready_and_not_known_to_be_idle() -> None:
    engine = Engine(lambda _: listing())
    engine.figures = "llamacpp:requests_processing 0\nllamacpp:requests_deferred 0\n"
    async with probed(engine, 5.0) as (prober, _):
        await until("it is idle", lambda: prober.get_health("m-0").idle is True)
        engine.figures = None
        await until("nobody knows", lambda: prober.get_health("m-0").idle is None)
        seen = engine.probed
        await until("it is probed on", lambda: engine.probed > seen + 3)
        known = prober.get_health("m-0")
        assert (known.health, known.idle, known.error) == (Health.READY, None, None)


async def test_who_asks_for_a_probe_may_have_the_reconciler_woken_though_nothing_is_new() -> None:
    engine = Engine(lambda _: listing())
    engine.figures = "llamacpp:requests_processing 0\nllamacpp:requests_deferred 0\n"
    async with probed(engine, 5.0, interval_s=3600) as (prober, woken):
        await until("it is idle", lambda: prober.get_health("m-0").idle_span is not None)
        first = prober.get_health("m-0")
        assert first.idle_span is not None
        woken.clear()
        prober.probe_now("m-0", then_wake=True)
        await until("the reconciler is woken", lambda: woken)
        again = prober.get_health("m-0")
        assert again.idle_span is not None
        assert (again.health, again.idle, again.idle_span.since) == (first.health, True, first.idle_span.since)
        assert again.idle_span.until > first.idle_span.until


CANARY: dict[str, Any] = {"prompt": "2, 3, 5,", "max_tokens": 3}
SLEEPS = SleepCalls((), (), "/is_sleeping", "/v1/completions", CANARY, keeps_weights=True)
ASLEEP = {"is_sleeping": True}


async def test_the_first_token_of_an_engine_that_can_sleep_is_its_canary_s() -> None:
    engine = Engine(lambda _: listing())
    async with probed(engine, None, sleep=SLEEPS) as (prober, _):
        await until("it is ready", lambda: prober.get_health("m-0").health is Health.READY)
        assert prober.get_health("m-0").canary == "canary 1"
        engine.state = web.json_response(ASLEEP)
        await until("it sleeps", lambda: prober.get_health("m-0").health is Health.SLEEPING)
        engine.state = web.json_response({})
        await until("it is awake", lambda: prober.get_health("m-0").health is Health.READY)
        assert (engine.canaries, prober.get_health("m-0").canary) == ([CANARY], "canary 1")


async def test_an_engine_that_sleeps_at_its_first_probe_is_asked_nothing_until_it_is_awake() -> None:
    engine = Engine(lambda _: listing())
    engine.state = web.json_response(ASLEEP)
    async with probed(engine, None, sleep=SLEEPS) as (prober, _):
        await until("it is probed on", lambda: engine.probed > 3)
        health = prober.get_health("m-0")
        assert (health.health, health.ready_since, health.canary) == (Health.SLEEPING, None, None)
        assert (engine.canaries, engine.asked) == ([], 0)
        engine.state = web.json_response({"is_sleeping": False})
        await until("it is ready", lambda: prober.get_health("m-0").health is Health.READY)
        assert prober.get_health("m-0").canary == "canary 1"


async def test_an_engine_whose_sleep_cannot_be_asked_is_not_taken_for_awake() -> None:
    engine = Engine(lambda _: listing())
    async with probed(engine, 5.0, sleep=SLEEPS) as (prober, _):
        await until("it is ready", lambda: prober.get_health("m-0").health is Health.READY)
        engine.state = web.Response(text="no engine", status=500)
        await until("it fails", lambda: prober.get_health("m-0").health is Health.FAILING)
        assert prober.get_health("m-0").error == "sleep: HTTP 500"
        engine.state = web.json_response({})
        await until("it is ready", lambda: prober.get_health("m-0").health is Health.READY)
    assert engine.canaries == [], "it was ready before"
