"""Hosts over real Ray, in networks of their own: whatever of Ray is killed or cut off, an engine runs on, and its host
is back.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from controller.hosts import HostState
from controller.runtimes.base import RuntimeUnavailableError, SeenReplica
from controller.runtimes.cluster.runtime import ClusterRuntime
from tests.support.process_engines import ProcessEngines
from tests.support.ray_hosts import RayHost, RayHosts, ray_hosts
from tests.support.wait import until

ACTOR, BRIDGE, RAYLET = "ray::HostActor", "python -m controller.runtimes.cluster.bridge", "raylet/raylet"


class Cluster:
    """A runtime over hosts `head` and `b`, and an engine on `b`."""

    def __init__(self, site: RayHosts, folder: Path) -> None:
        self.site = site
        self.engines = ProcessEngines(site.hosts["b"].folder)
        self.carrier = site.carrier(self.engines.instance, folder / "joined.json")
        self.runtime = ClusterRuntime(self.carrier, kind="process")
        self.took: dict[str, float] = {}

    @property
    def b(self) -> RayHost:
        return self.site.hosts["b"]

    async def states(self) -> dict[str, HostState]:
        await self.runtime.list_replicas()
        return {each.name: each.state for each in await self.runtime.read_hosts()}

    async def until(self, what: str, state: HostState, deadline_s: float) -> None:
        """Wait until the host `b` is in this state, and the head is ready. Notes how long that took."""
        began_at = time.monotonic()

        async def look() -> bool:
            return await self.states() == {"b": state, "head": HostState.READY}

        await until(f"{what}: {state}", look, deadline_s)
        self.took[what] = time.monotonic() - began_at

    async def seen(self) -> SeenReplica:
        [replica] = await self.runtime.list_replicas()
        return replica


async def test_engines_outlive_all_of_ray(tmp_path: Path) -> None:
    with ray_hosts("head", "b") as site:
        await until("the head is there", lambda: len(site.head.pids("supervisor")) == 2)
        cluster = Cluster(site, tmp_path)
        try:
            await _torment(cluster)
        finally:
            await cluster.runtime.close()
            await cluster.engines.close()
            print({what: f"{s:.1f} s" for what, s in cluster.took.items()})


async def _torment(cluster: Cluster) -> None:
    site, engines, runtime = cluster.site, cluster.engines, cluster.runtime
    began_at = time.monotonic()

    async def look() -> bool:
        with suppress(RuntimeUnavailableError):  # none has joined
            return await cluster.states() == {"b": HostState.READY, "head": HostState.READY}
        return False

    await until("both are ready", look, 60)
    cluster.took["joined"] = time.monotonic() - began_at
    request = engines.request(engines.stub())
    await runtime.start_replica(replace(request, host="b"))
    before = await cluster.seen()
    pids = engines.pids(request.name)
    assert before.host == "b"
    assert pids

    cluster.b.kill(ACTOR)
    await until("the actor is made again", lambda: cluster.b.pids(ACTOR))
    await cluster.until("actor killed", HostState.READY, 30)

    os.kill(site.head.pids(BRIDGE)[-1], signal.SIGKILL)  # not `nsenter`, which waits for it
    began_at = time.monotonic()
    assert await runtime.list_ended_logs("m") == [], "a request survives the bridge"
    cluster.took["asked after the bridge was killed"] = time.monotonic() - began_at
    assert set((await cluster.states()).values()) == {HostState.READY}, "that it was away is not the hosts' silence"

    raylet = cluster.b.kill(RAYLET)
    await until("Ray is started again", lambda: set(cluster.b.pids(RAYLET)) - {raylet})
    await cluster.until("raylet killed", HostState.READY, 40)

    site.cut(cluster.b)
    await cluster.until("cable pulled", HostState.SILENT, 12)
    assert not (await cluster.seen()).is_current
    site.heal(cluster.b)
    await cluster.until("cable plugged in", HostState.READY, 40)

    after = await cluster.seen()
    assert (after.name, after.base_url, after.is_current) == (before.name, before.base_url, True)
    assert engines.pids(request.name) == pids

    cluster.b.end()
    await cluster.until("host killed", HostState.SILENT, 12)
