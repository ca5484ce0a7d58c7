"""An installation of several machines, as an operator makes it: `head` on one, `join` on another, real Ray between."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time

import pytest

from cli.admin_client import AdminClient
from cli.output import CommandError
from controller.runtimes.cluster.material import MATERIAL_NAME, cluster_folder
from tests.support.ray_hosts import RayHost, RayHosts, ray_hosts
from tests.support.wait import eventually, until

RAYLET = "raylet/raylet"


class Site:
    """A head, `b` and `c`, on none of which anything runs yet."""

    def __init__(self, site: RayHosts) -> None:
        self.site = site
        self.head, self.b, self.c = (site.hosts[each] for each in ("head", "b", "c"))
        for host in (self.head, self.b, self.c):
            (host.folder / "models").mkdir(parents=True)

    def start_head(self) -> None:
        desired = self.head.folder / "desired-state"
        desired.mkdir()
        (desired / "models.yaml").write_text("models: {}\n")
        self.site.run(self.head, "head", "--address", self.head.address, "--name", "head", "--runtime", "process")
        file = cluster_folder(self.head.state) / MATERIAL_NAME
        eventually("the token is there", file.exists)
        for host in (self.b, self.c):
            shutil.copy(file, host.folder / "join.json")  # with its mode, 0600

    def join(self, host: RayHost, *options: str) -> None:
        self.site.run(host, "join", f"{self.head.address}:8093", "--token-file", "join.json", *options)

    def end_of(self, host: RayHost, command: str) -> tuple[int, str]:
        """Wait for the end of a command on a host, and return its exit code and what it has printed."""
        code = host.folder / f"{command}.code"
        eventually(f"{command} ends", lambda: code.exists() and code.read_text())
        return int(code.read_text()), (host.folder / f"{command}.log").read_text()

    async def until(self, what: str, **states: str) -> None:
        """Wait until the head's controller lists the hosts in these states."""

        async def look() -> bool:
            try:
                async with AdminClient(f"unix:{self.head.state}/controller.sock") as client:
                    return {each.name: each.state for each in (await client.list_hosts()).hosts} == states
            except CommandError:
                return False

        began_at = time.monotonic()
        try:
            await until(what, look, 120)
        except AssertionError as error:
            logs = [each.read_text() for each in self.site.folder.glob("host-*/*.log")]
            raise AssertionError("\n".join([str(error), *logs])) from None
        print(f"{what}: {time.monotonic() - began_at:.1f} s")


def check_files(site: Site) -> None:
    """What b lacks of a model comes from the head, over TLS with the certificates of both."""
    folder = site.head.folder / "models" / "m"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "w.safetensors").write_bytes(os.urandom(3_000_000))
    models = {"m": {"backend": "vllm", "model_path": "m", "hosts": ["b"], "gpus": 0, "vram_mib": 1}}
    (site.head.folder / "desired-state" / "models.yaml").write_text(json.dumps({"models": models}))
    copied = site.b.folder / "models" / "m" / "w.safetensors"
    eventually("its files are there", copied.exists)
    assert copied.read_bytes() == (folder / "w.safetensors").read_bytes()
    assert f"other hosts get models at https://{site.b.address}:8099" in (site.b.folder / "join.log").read_text()
    (site.head.folder / "desired-state" / "models.yaml").write_text("models: {}\n")


@pytest.mark.engines
async def test_a_host_joins_comes_back_and_leaves() -> None:
    with ray_hosts("head", "b", "c", with_ray=False) as hosts:
        site = Site(hosts)
        for host in (site.head, site.b):
            host.settings["ROUNDHOUSE_DOWNLOADS"] = "on"
        site.start_head()
        site.join(site.b, "--name", "b", "--label", "disk=fast")
        await site.until("both are ready", head="ready", b="ready")
        [first_line, *_] = (site.b.folder / "join.log").read_text().splitlines()
        assert "can run programs on every host" in first_line
        check_files(site)

        # A second one of the name starts nothing, and its state folder is nobody's.
        site.join(site.c, "--name", "b")
        code, words = site.end_of(site.c, "join")
        refusal = f"there is a host b at {site.b.address} already, and it is ready: choose another --name"
        assert (code, refusal in words) == (1, True)
        assert refusal in (site.head.folder / "head.log").read_text()
        assert not (site.c.state / "identity.json").exists()

        raylet = site.b.kill(RAYLET)
        eventually("another one runs", lambda: site.b.pids(RAYLET) not in ([], [raylet]))
        await site.until("it is back", head="ready", b="ready")

        site.site.run(site.b, "leave")
        assert site.end_of(site.b, "leave") == (0, f"host b has left {site.head.address}:8093\n")
        assert site.end_of(site.b, "join")[0] == 0
        assert not cluster_folder(site.b.state).exists()
        await site.until("the head has forgotten it", head="ready")

        # The head's end leaves nothing behind.
        os.kill(site.head.pids("-m cli.main head")[-1], signal.SIGINT)
        assert site.end_of(site.head, "head")[0] == 0
        assert not site.head.pids("ray")
