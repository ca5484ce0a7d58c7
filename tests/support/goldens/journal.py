"""The journal of a scripted controller, by a clock of the script's own: what is written of each thing that happens."""

from __future__ import annotations

import asyncio
import json
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from tests.support.controller_harness import AddressedRuntime, ControllerHarness
from tests.support.goldens.product import DesiredCallbacks, GatewayReport, Recorder, Round, Trouble, redact_nothing

START: Final = 1_700_000_000.0
MODELS: Final[dict[str, dict[str, Any]]] = {
    "m": {"backend": "stub", "replicas": 2},
    "on-demand": {"backend": "stub", "enabled": False, "autoload": True, "idle_ttl_s": 30.0},
    "off": {"backend": "llama_server", "model_path": "m.gguf", "enabled": False, "replica_max": 3},
}
EDITED: Final[dict[str, dict[str, Any]]] = {
    "m": {"backend": "stub", "replicas": 1, "stub_text": "other"},
    "off": {"backend": "llama_server", "model_path": "m.gguf", "enabled": False, "replicas": 2, "replica_max": 3},
    "new": {"backend": "stub"},
}


class RecordedHarness(ControllerHarness):
    """Its rounds, edits and gateways are written into the journal, as a whole controller's are."""

    def begin(self, time: list[float]) -> None:
        """What a controller does before its first round."""
        self.recorder = Recorder(self.journal, lambda: time[0], redact_nothing)
        self.files._callbacks = DesiredCallbacks(on_edit=self.recorder.record_edits)
        self.recorder.record_start("0.0.0", "i")

    def _told(self, before: Round | None, after: Round | None) -> None:
        super()._told(before, after)
        if after is not None:
            self.recorder.record_round(before, after, self.hub.views)
        self.recorder.record_trouble(Trouble(tuple(self.files.file_source.problems), self.reconciler.error))


class Script:
    """The controller, its files and its host."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.time = [START]
        self.runtime = AddressedRuntime(lambda: self.time[0])
        self.ready = True
        (root / "desired").mkdir()

    def declare(self, content: object) -> None:
        (self.root / "desired" / "models.yaml").write_text(content if isinstance(content, str) else json.dumps(content))

    def open(self) -> RecordedHarness:
        self.harness = RecordedHarness(self.root, self.runtime, self.time)
        self.harness.begin(self.time)
        return self.harness

    async def edit(self, content: object) -> None:
        """Write the file, and let the controller read it until what it deletes counts as meant."""
        self.declare(content)
        await self.harness.files.read_files()
        await self.rounds(2)
        self.time[0] += 5.0
        await self.harness.files.read_files()

    async def rounds(self, count: int) -> None:
        for _ in range(count):
            await self.harness.reconciler.run_round()
            await self.harness.operations.wait_until_idle()
            for name in self.runtime.replicas if self.ready else ():
                self.harness.prober.ready.setdefault(name, self.time[0])
            self.time[0] += 1.0

    def end_one(self, model: str) -> None:
        """One of the model's engines ends by itself."""
        name = min(name for name, seen in self.runtime.replicas.items() if seen.id.model == model)
        del self.harness.prober.ready[name]
        self.runtime.end(name, 1, "loading: 40 %\nthe engine cannot go on\n")


def make_journal() -> Any:
    """All entries, the oldest first."""
    with tempfile.TemporaryDirectory(prefix="rh") as folder:
        return asyncio.run(_entries(Path(folder)))


async def _entries(root: Path) -> list[Any]:
    script = Script(root)
    script.declare({"models": MODELS})
    harness = script.open()
    try:
        await _play(script, harness)
        entries = harness.journal.read_after(0, 1_000)
    finally:
        harness.end()
    text = json.dumps([entry.model_dump(mode="json") for entry in entries])
    return list(json.loads(text.replace(str(root), "/srv/roundhouse")))


async def _play(script: Script, harness: RecordedHarness) -> None:
    harness.recorder.record_gateway("gw-1", is_connected=True)
    await harness.files.read_files()
    await script.rounds(4)
    # An engine ends, and is started again.
    script.end_one("m")
    await script.rounds(5)
    # Operators.
    harness.admin_service.load_model("off", {}, 2, actor="operator")
    await script.rounds(3)
    harness.admin_service.unload_model("off", hold=True, actor="operator")
    await script.rounds(4)
    # A request loads a model, which is unloaded for want of use.
    assert harness.ask_for("on-demand", script.time[0])
    await script.rounds(3)
    script.time[0] += 40.0
    await script.rounds(5)
    # Edits, good and bad, of models and keys.
    key = {"sha256": sha256(b"a").hexdigest()}
    await script.edit({"models": EDITED, "keys": {"team-a": key}})
    await script.rounds(6)
    await script.edit("models: {m: {backend: stub, replicas: many}}\n")
    await script.rounds(1)
    server = {"url": "https://mcp.example.org/mcp", "headers": {"Authorization": "Bearer secret-of-a-server"}}
    tools = {"tools": {"calculate": {}}, "mcp_servers": {"weather": server}}
    await script.edit({"models": EDITED, "keys": {"team-a": {**key, "concurrency": 2}}, **tools})
    await script.rounds(4)
    # The host.
    script.runtime.unavailable = "the daemon is down"
    await script.rounds(1)
    harness._told(harness.reconciler.round, None)
    script.runtime.unavailable = None
    await script.rounds(2)
    # What cannot be started.
    script.runtime.preflight_error = "model_path: there is no such file"
    harness.admin_service.load_model("off", {"llama_server_n_ctx": 4096}, None, actor="operator")
    await script.rounds(3)
    script.runtime.preflight_error = None
    harness.admin_service.reset_model("off", actor="operator")
    await script.rounds(2)
    await _unload_that_is_held(script, harness)
    harness.recorder.record_statement("paused by operator", "operator", {"action": "pause"})
    harness.recorder.record_gateway("gw-1", is_connected=False)
    harness.recorder.record_end()


async def _unload_that_is_held(script: Script, harness: RecordedHarness) -> None:
    [name] = [name for name, seen in script.runtime.replicas.items() if seen.id.model == "new"]
    harness.hub.holds = frozenset({name})
    harness.admin_service.unload_model("new", hold=False, actor="operator")
    await script.rounds(3)
    stamp = harness.hub.table.stamp if harness.hub.table is not None else None
    leaving = {name: {"req-1": script.time[0] - 10.0}}
    harness.hub.take_report(GatewayReport(gateway_id="gw-1", stamp=stamp, inflight={name: 1}, leaving=leaving))
    script.time[0] += 400.0
    await script.rounds(2)
