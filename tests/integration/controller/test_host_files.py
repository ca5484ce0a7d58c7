"""Two hosts with models folders of their own, real engines, and the `transfers` of the head and of each host: what a
host lacks it gets before anything is drained, and a full disk is its own trouble alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from contract.journal import JournalEntry
from contract.status import ModelState
from controller.assembly import Controller
from controller.runtimes import open_runtime
from controller.settings import load_settings
from controller.state_dir import StateDir
from tests.support.host_transfers import HostProgram, running
from tests.support.installed_engines import needed
from tests.support.small_disk import mount_small_disk
from tests.support.wait import until

FIELDS: dict[str, object] = {"backend": "llama_server", "memory_mib": 600, "drain_timeout_s": 5}


class Site:
    """A controller over hosts a and b."""

    def __init__(self, controller: Controller, desired: Path) -> None:
        self.controller, self._desired = controller, desired

    def declare(self, **models: dict[str, object]) -> None:
        text = json.dumps({"models": {name: FIELDS | fields for name, fields in models.items()}})
        (self._desired / "models.yaml").write_text(text)

    def served_by(self, model: str) -> dict[str, str]:
        """The hosts on which the model's replicas serve the present definition, to the state of each."""
        current = self.controller.admin_service.read_current_state()
        declared = current.desired.models.get(model)
        return {
            each.host: each.health.value
            for each in current.observed.replicas
            if declared is not None and each.id.model == model and each.id.spec_hash == declared.spec_hash
        }

    def status(self, model: str) -> Any:
        statuses = self.controller.admin_service.read_current_state().statuses
        return next((each for each in statuses if each.name == model), None)

    def events(self) -> list[JournalEntry]:
        """Oldest first."""
        return self.controller.journal.read_page(("action", "failure"), None, None, 100)[::-1]


@contextlib.asynccontextmanager
async def open_site(folder: Path, head: HostProgram) -> AsyncIterator[Site]:
    (folder / "desired").mkdir()
    settings = load_settings(
        desired=folder / "desired",
        state=folder / "state",
        models=head.models,
        transfers_url=f"unix:{head.folder / 'transfers.sock'}",
        hosts="local:a,local:b",
        engines_memory_mib=1000,
        probe_interval_s=0.2,
        resync_s=0.5,
    )
    async with contextlib.AsyncExitStack() as stack:
        store = stack.enter_context(contextlib.closing(StateDir.open_folder(settings.state, "i")))
        runtime = await open_runtime(settings, "i")
        client = await stack.enter_async_context(aiohttp.ClientSession())
        controller = Controller(settings, store, runtime, client)
        site = Site(controller, folder / "desired")
        site.declare()
        await stack.enter_async_context(controller)
        stack.callback(controller.shut_down, stop_engines=True, engines_grace_s=5)
        await until("both hosts say where their files are", lambda: all_share(controller))
        yield site


def all_share(controller: Controller) -> bool:
    plan = controller.get_plan()
    return plan is not None and all(
        each.files_url for each in controller.admin_service.read_current_state().observed.hosts
    )


async def test_a_host_gets_what_it_lacks_before_anything_is_drained(tmp_path: Path, clockwork: Path) -> None:
    needed("embedded")
    hosts = tmp_path / "state" / "hosts"
    hosts.mkdir(parents=True)
    with (
        mount_small_disk(hosts / "b", 8192) as disk,
        running(tmp_path, "head", "state/hosts/a", "state/hosts/b") as (head, a, b),
    ):
        shutil.copy(clockwork, head.models / "one.gguf")
        async with open_site(tmp_path, head) as site:
            site.declare(m={"model_path": "one.gguf", "replicas": 2})
            await until("both serve", lambda: site.served_by("m") == {"a": "ready", "b": "ready"})
            for each in (a, b):
                assert (each.models / "one.gguf").read_bytes() == clockwork.read_bytes()
            fetches = [each for each in site.events() if each.details.get("action") == "fetch"]
            assert sorted(str(each.details["host"]) for each in fetches) == ["a", "b"]
            assert fetches[0].message == "fetch m: host a does not have its files as the head has them"

            # There is no room for both the old engine and the new one.
            (head.models / "two.gguf").write_bytes(clockwork.read_bytes() + bytes(64))
            site.declare(m={"model_path": "two.gguf", "replicas": 2})
            early = asyncio.create_task(find_early_drain(site, {"a": a, "b": b}))
            await until(
                "both serve the new file",
                lambda: site.served_by("m") == {"a": "ready", "b": "ready"} and (a.models / "two.gguf").exists(),
            )
            early.cancel()
            assert not [each for each in site.events() if each.kind == "failure"]

            disk.fill()
            shutil.copy(clockwork, head.models / "three.gguf")
            site.declare(m={"model_path": "three.gguf"}, n={"model_path": "three.gguf", "hosts": ["b"]})
            await until("a serves it", lambda: site.served_by("m") == {"a": "ready"})
            failed = await until(
                "b says why",
                lambda: (found := site.status("n")) is not None and found.state is ModelState.FAILED and found,
            )
            assert "its disk" in failed.last_error or "the disk of the models folder" in failed.last_error
            assert failed.last_error.startswith("the files of n cannot be copied to host b: The download needs 0.0")
            disk.free()
            await until("b has it as soon as there is room", lambda: site.served_by("n") == {"b": "ready"})


async def find_early_drain(site: Site, hosts: dict[str, HostProgram]) -> None:
    """Fail if an engine leaves while the new file is not on its host."""
    while True:
        current = site.controller.admin_service.read_current_state()
        for each in current.observed.replicas:
            if each.draining is not None:
                assert (hosts[each.host].models / "two.gguf").exists(), f"{each.name} leaves for what cannot start"
        await asyncio.sleep(0.01)
