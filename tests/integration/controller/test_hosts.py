"""Two hosts in one controller, with real engines and a real gateway: a host that is lost loses its models to the other,
and what serves when it comes back stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from contract.routing import Endpoint
from controller.assembly import Controller
from controller.planning.actions import Start
from controller.planning.plan import plan
from controller.runtimes import open_runtime
from controller.runtimes.cluster.local_carrier import HERE, SILENT
from controller.settings import ControllerSettings, load_settings
from controller.state import ObservedReplica, PreflightKey, PreflightResult
from controller.state_dir import StateDir
from gateway.settings import GatewaySettings
from tests.fakes.gateway_harness import server_running
from tests.support.controller_app import serve_controller
from tests.support.ports import free_port
from tests.support.relays import find_relay
from tests.support.wait import until

LOST_S = 6.0
SILENT_S = 3.0 if os.environ.get("CI") is None else 5.5  # other tests run beside this one there
"""Seconds until a silent host gets no more requests."""
FIELDS: dict[str, object] = {"backend": "stub", "replicas": 3, "memory_mib": 100, "drain_timeout_s": 5}
QUESTION = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


def _declare(folder: Path, fields: Mapping[str, object], **settings: Any) -> ControllerSettings:
    for name in ("desired", "gateway", "models"):
        (folder / name).mkdir(parents=True)
    (folder / "desired" / "models.yaml").write_text(json.dumps({"models": {"m": fields}}))
    return load_settings(
        desired=folder / "desired",
        state=folder / "state",
        models=folder / "models",
        hosts="local:a,local:b",
        host_lost_s=LOST_S,
        probe_interval_s=0.2,
        **settings,
    )


class Site:
    """A controller that begins paused, its gateway, and what a client saw that asks all the time."""

    def __init__(self, controller: Controller, settings: ControllerSettings, url: str) -> None:
        self.controller, self.settings, self.url = controller, settings, url
        self.answers: Counter[int] = Counter()

    def edit(self, **fields: object) -> None:
        """Write the files anew, with further fields of the model."""
        (self.settings.desired / "models.yaml").write_text(json.dumps({"models": {"m": FIELDS | fields}}))

    def turn(self, host: str, switch: str) -> None:
        (self.settings.state / "hosts" / host / "switch").write_text(switch)

    def replicas(self) -> list[ObservedReplica]:
        return list(self.controller.admin_service.read_current_state().observed.replicas)

    def endpoints(self) -> tuple[Endpoint, ...]:
        table = self.controller.hub.table
        return table.models[0].endpoints if table is not None and table.models else ()

    def routed(self) -> set[str]:
        return {each.replica for each in self.endpoints()}

    def spec_hash(self) -> str:
        return self.controller.admin_service.read_current_state().desired.models["m"].spec_hash

    def is_settled(self) -> bool:
        """Whether exactly the declared replicas run, of the present definition, and serve."""
        return [each.id.spec_hash for each in self.replicas()] == [self.spec_hash()] * 3 and len(self.routed()) == 3

    def served_by(self) -> Counter[str]:
        """Replicas that get requests, by host."""
        routed = self.routed()
        return Counter(each.host for each in self.replicas() if each.name in routed)

    def planned(self) -> Counter[str]:
        """Where the next plan starts the model's replicas, if nothing stands in the way."""
        now, current = time.time(), self.controller.admin_service.read_current_state()
        model = current.desired.models["m"]
        passed = {PreflightKey("m", model.spec_hash, host): PreflightResult(True, now) for host in "ab"}
        actions = plan(current.desired, replace(current.observed, preflights=passed), now).actions
        return Counter(each.host for each in actions if isinstance(each, Start))

    async def ask(self, session: aiohttp.ClientSession) -> None:
        while True:
            async with session.post(f"{self.url}/v1/chat/completions", json=QUESTION) as answer:
                await answer.read()
                self.answers[answer.status] += 1
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def _site(folder: Path, fields: Mapping[str, object] = FIELDS, **changes: Any) -> AsyncIterator[Site]:
    settings = _declare(folder, fields, **changes)
    async with contextlib.AsyncExitStack() as stack:
        store = stack.enter_context(contextlib.closing(StateDir.open_folder(settings.state, "i")))
        runtime = await open_runtime(settings, "i")
        client = await stack.enter_async_context(aiohttp.ClientSession())
        controller = Controller(settings, store, runtime, client)
        controller.set_paused(True, actor="the test")
        await stack.enter_async_context(controller)
        stack.callback(controller.shut_down, stop_engines=True, engines_grace_s=5)
        control = await stack.enter_async_context(serve_controller(controller))
        told = GatewaySettings(controller_url=control, retrieval=False, state=folder / "gateway")
        url, _ = await stack.enter_async_context(server_running(told))
        await until("the first observation", lambda: controller.get_plan() is not None)
        site = Site(controller, settings, url)
        for host in "ab":
            stack.callback(site.turn, host, HERE)
        yield site


async def test_a_drained_host_loses_nothing_and_a_lost_one_its_models_until_it_is_back(tmp_path: Path) -> None:
    async with _site(tmp_path) as site, aiohttp.ClientSession() as session:
        planned = site.planned()
        assert sorted(planned.values()) == [1, 2]
        site.controller.set_paused(False, actor="the test")
        await until("all serve", lambda: len(site.routed()) == 3)
        assert site.served_by() == planned
        asking = asyncio.create_task(site.ask(session))
        before = {each.name: each.host for each in site.replicas()}
        addresses = {each.host: (each.base_url or "").rpartition(":")[0] for each in site.replicas()}
        assert addresses == {"a": "http://127.0.0.2", "b": "http://127.0.0.3"}

        site.controller.host_service.drain_host("b", actor="the test")
        await until("what ran on b has moved", lambda: site.served_by() == {"a": 3} and len(site.replicas()) == 3)
        assert site.answers.keys() <= {200}, "a drain loses nothing"
        site.controller.host_service.undrain_host("b", actor="the test")
        # What has moved stays; an edit spreads it again.
        old_hash = site.spec_hash()
        site.edit(env={"A": "b"})
        await until("the edit is read", lambda: site.spec_hash() != old_hash)
        await until("all are replaced", site.is_settled)
        assert sorted(site.served_by().values()) == [1, 2], "it is spread again"
        planned = site.served_by()
        before = {each.name: each.host for each in site.replicas()}

        site.turn("b", SILENT)
        began_at = time.monotonic()
        await until("b gets no requests", lambda: set(site.served_by()) == {"a"})
        assert time.monotonic() - began_at < SILENT_S
        assert len(site.routed()) == planned["a"], "nothing was started yet: what runs on b is not known"
        await until("a serves all", lambda: site.served_by() == {"a": 3}, deadline_s=LOST_S + 10)
        assert {name for name, host in before.items() if host == "b"} <= {each.name for each in site.replicas()}

        serving = site.routed()
        site.turn("b", HERE)
        await until("only the declared replicas are left", lambda: len(site.replicas()) == 3)
        assert {each.name for each in site.replicas()} == site.routed() == serving
        assert not asking.done()
        asking.cancel()
        assert site.answers.keys() == {200}
        assert not any((site.settings.state / "hosts" / "b" / "replicas").iterdir())


WORDS = [f"word{number}" for number in range(3000)]


async def _read_stream(
    session: aiohttp.ClientSession, url: str, tokens: int | None, begun: asyncio.Event | None = None
) -> str:
    """The text of a streamed answer, as far as it came."""
    text = ""
    question = QUESTION | {"stream": True, "max_tokens": tokens}
    with contextlib.suppress(aiohttp.ClientError):
        async with session.post(f"{url}/v1/chat/completions", json=question) as answer:
            assert answer.status == 200
            async for line in answer.content:
                if line.startswith(b"data: {") and (choices := json.loads(line[6:]).get("choices")):
                    text += choices[0]["delta"].get("content") or ""
                    if begun is not None and text:
                        begun.set()
    return text.strip()


@pytest.mark.parametrize("is_insecure", [False, True])
async def test_engines_of_hosts_are_reached_through_relays_alone(tmp_path: Path, is_insecure: bool) -> None:
    port = free_port()
    fields = FIELDS | {"replicas": 2, "stub_text": " ".join(WORDS), "stub_token_delay_ms": 30}
    changes = {"host_relay_port": port, "insecure_private_network": is_insecure}
    async with _site(tmp_path, fields, **changes) as site, aiohttp.ClientSession() as session:
        site.controller.set_paused(False, actor="the test")
        await until("both serve", lambda: site.served_by() == {"a": 1, "b": 1})
        hosts = {each.name: each.host for each in site.replicas()}
        first, second = sorted(site.endpoints(), key=lambda each: hosts[each.replica])
        if is_insecure:
            assert [first.base_url, second.base_url] == [f"http://127.0.0.2:{port + 1}", f"http://127.0.0.3:{port + 1}"]
            assert (first.tls, second.tls) == (None, None)
        else:
            assert [first.base_url, second.base_url] == [f"https://127.0.0.2:{port}", f"https://127.0.0.3:{port}"]
            assert first.tls is not None
            assert first.tls.server_name == f"{first.replica}.a.roundhouse.internal"

        async def ask(tokens: int | None, times: int) -> tuple[list[asyncio.Task[str]], list[str]]:
            """Begin streams, and return them once each has its first token, with what they must say."""
            begun = [asyncio.Event() for _ in range(times)]
            asking = [asyncio.create_task(_read_stream(session, site.url, tokens, each)) for each in begun]
            await asyncio.gather(*(each.wait() for each in begun))
            return asking, [" ".join(WORDS[:tokens])] * times

        def idle() -> set[str]:
            return {hosts[each.name] for each in site.replicas() if each.idle_span is not None}

        asking, expected = await ask(10, 4)
        assert await asyncio.gather(*asking) == expected
        asking, _ = await ask(None, 2)
        await until("both work", lambda: not idle())
        for each in asking:
            each.cancel()
        await until("a client that leaves ends the work, of 90 s", lambda: idle() == {"a", "b"})

        asking, expected = await ask(30, 2)
        folder = site.settings.state / "hosts" / "a" / "cluster"
        killed = find_relay(folder)
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        texts = await asyncio.gather(*asking)
        assert sorted(text == expected[0] for text in texts) == [False, True], "only what was inside is lost"
        asking, expected = await ask(10, 2)
        assert await asyncio.gather(*asking) == expected
        await until("it is back", lambda: find_relay(folder) not in (None, killed))
        await until("both serve", lambda: site.served_by() == {"a": 1, "b": 1})
        assert {each.name: each.host for each in site.replicas()} == hosts, "no engine was started anew"
