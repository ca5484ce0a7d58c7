"""The gateway asks models that somebody else serves how they are, and reports it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from contract.routing import Endpoint, ModelRoute, RemoteProbe, RemoteResult
from contract.status import ModelState
from gateway.control.remote_health import FAILURES
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness, until
from tests.support.loop_clock import LoopClock, loop_clock
from tests.support.ports import free_port

__all__ = ["loop_clock"]


class Elsewhere:
    """A server that wants the key `sk-123`, and may be told to answer otherwise."""

    def __init__(self) -> None:
        self.url = ""
        self.status: int | None = None
        self.asked = 0

    async def answer(self, request: web.Request) -> web.Response:
        self.asked += 1
        if self.status is not None:
            return web.Response(status=self.status, headers={"Location": "/elsewhere"})
        return web.Response(status=200 if request.headers.get("Authorization") == "Bearer sk-123" else 401)


@contextlib.asynccontextmanager
async def elsewhere() -> AsyncIterator[Elsewhere]:
    """One that listens."""
    made = Elsewhere()
    app = web.Application()
    app.router.add_get("/v1/models", made.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1/models"
    yield made
    await runner.cleanup()


def remote(name: str, url: str, token: str | None = None, *, spec: str = "h", interval_s: float = 0.02) -> ModelRoute:
    """A remote model that nobody has asked yet, and has no endpoint therefore."""
    probe = RemoteProbe.model_validate({"url": url, "spec": spec, "token": token, "interval_s": interval_s})
    return route(name, state=ModelState.LOADING, remote_probe=probe)


async def reported(gateway: GatewayHarness, *names: str) -> dict[str, RemoteResult]:
    """What the gateway says of remotes, once it says something of exactly these."""
    return (await gateway.controller.report_where(lambda report: report.remotes.keys() == set(names))).remotes


async def test_what_remotes_answer_is_reported_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="gateway")
    async with gateway_harness() as gateway, elsewhere() as far:
        nowhere = f"http://user:pa55word@127.0.0.1:{free_port()}/v1/models"
        await gateway.publish(
            remote("well", far.url, "sk-123"),
            remote("wrong", far.url, "sk-9"),
            remote("lost", far.url.replace("models", "m?key=sk-9"), "sk-9"),
            remote("nowhere", nowhere, interval_s=3600),  # nobody listens: it has failed at once
            remote("no-address", "http://user:pa55word@h:99999/v1/models"),
            remote("no-header", far.url, "sk-1\n23"),
            route("an engine's"),
        )
        results = await reported(gateway, "well", "wrong", "lost", "nowhere", "no-address", "no-header")
        errors = {name: result.error or "" for name, result in results.items()}
        assert results["well"].error is None
        assert errors["wrong"] == f"{far.url} answers HTTP 401; its key was refused"
        assert errors["lost"].endswith("/m?key=*** answers HTTP 404")
        assert "cannot be reached" in errors["nowhere"]
        assert errors["no-address"]
        assert errors["no-header"]
        for text in (str(errors), caplog.text):
            assert "pa55word" not in text
            assert "sk-" not in text


async def test_a_change_is_reported_at_once_a_redirect_not_followed_and_a_limit_no_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="gateway")
    async with gateway_harness() as gateway, elsewhere() as far:
        await gateway.publish(remote("m", far.url, "sk-123"))
        first = (await reported(gateway, "m"))["m"]
        for status in (503, 302):
            far.status = status
            told = await gateway.controller.report_where(
                lambda report: f"answers HTTP {far.status}" in str(report.remotes["m"].error)
            )
            assert told.remotes["m"].at > first.at
        far.status = 429
        await gateway.controller.report_where(lambda report: report.remotes["m"].error is None)
    assert "answers HTTP 429; it is there, and limits how often it is asked" in caplog.text


async def test_two_failures_are_none_and_a_third_says_when_it_is_asked_again() -> None:
    async with gateway_harness() as gateway, elsewhere() as far:
        far.status = 503
        await gateway.publish(remote("m", far.url, "sk-123", interval_s=0.05))
        await until(lambda: far.asked >= 1, "it is asked")
        failed = (await reported(gateway, "m"))["m"]
        assert far.asked >= FAILURES
        assert failed.error == f"{far.url} answers HTTP 503"
        assert failed.retry_at is not None
        assert failed.retry_at > failed.at
        far.status = 401
        told = await gateway.controller.report_where(
            lambda report: "answers HTTP 401" in str(report.remotes["m"].error)
        )
        assert told.remotes["m"].retry_at is None, "only another key helps"


async def test_a_request_that_fails_has_the_remote_asked_at_once() -> None:
    async with gateway_harness() as gateway, elsewhere() as far, engines(1) as (engine,):
        probed = remote("m", far.url, "sk-123", interval_s=0.2)
        there = Endpoint(replica="m", base_url=engine.url + "/v1", api_prefix="", remote=True)
        await gateway.publish(probed.model_copy(update={"state": ModelState.LOADED, "endpoints": (there,)}))
        await until(lambda: far.asked >= 1, "it is asked")
        assert (await gateway.chat()).status == 200
        asked = far.asked  # and now not for a minute
        assert (await gateway.chat(fault="error_json")).status == 500
        await until(lambda: far.asked > asked, "it is asked again")


async def test_results_are_those_of_the_table_in_force() -> None:
    async with gateway_harness() as gateway, elsewhere() as far:
        await gateway.publish(remote("m", far.url, "sk-9"), remote("n", far.url, "sk-123", interval_s=3600))
        first = await reported(gateway, "m", "n")
        n = remote("n", far.url, "sk-123", interval_s=3600)
        told = await gateway.controller.acknowledged(
            await gateway.controller.publish(remote("m", far.url, "sk-123"), n)
        )
        assert told.remotes["n"] == first["n"], "it was asked already"
        assert told.remotes.keys() == {"m", "n"}, "another key: what was seen stands until the next answer"
        await gateway.controller.report_where(lambda report: report.remotes["m"].error is None)
        stamp = await gateway.controller.publish(remote("m", far.url, "sk-123", spec="other"))
        told = await gateway.controller.acknowledged(stamp)
        assert told.remotes.keys() <= {"m"}
        assert {result.spec for result in told.remotes.values()} <= {"other"}
        assert (await reported(gateway, "m"))["m"].error is None
        assert (await gateway.controller.acknowledged(await gateway.controller.publish())).remotes == {}


async def test_one_that_hangs_holds_up_nobody(loop_clock: LoopClock) -> None:
    def hold(*_: Any) -> None:
        """Accept, and never answer."""

    hang = await asyncio.start_server(hold, "127.0.0.1", 0)
    port = hang.sockets[0].getsockname()[1]
    async with gateway_harness() as gateway, elsewhere() as far:
        await gateway.publish(remote("hangs", f"http://127.0.0.1:{port}/v1/models"), remote("m", far.url, "sk-123"))
        await reported(gateway, "m")
        await loop_clock.skip(6 * FAILURES + 6)
        results = await reported(gateway, "hangs", "m")
        assert "does not answer in time" in (results["hangs"].error or "")
    hang.close()


async def test_remotes_are_asked_on_while_the_controller_is_away() -> None:
    async with gateway_harness() as gateway, elsewhere() as far:
        await gateway.publish(remote("m", far.url, "sk-123"))
        await reported(gateway, "m")
        await gateway.controller.stop()
        far.status = 500
        asked = far.asked
        await until(lambda: far.asked > asked + 1, "it is asked on")
        gateway.controller.reports.clear()
        await gateway.controller.start()
        await gateway.controller.report_where(lambda report: "HTTP 500" in str(report.remotes.get("m")))
