"""A folder of desired-state files in force, for dry runs over a fake host."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any

from contract.admin import DryRun, ModelChange, ProposedFiles
from contract.declarations import RuntimeDeclarations
from contract.desired import Definition
from contract.override import Evicted, Override
from controller.config.debounce import DebouncedState, settled_state
from controller.config.parse import parse_folder, read_folder
from controller.config.runtime_declarations import combine_declarations
from controller.config.validate import PlacedSource
from controller.desired.file_source import DesiredOptions
from controller.desired.resolve import DeclaredModel, Defaults, resolve_desired
from controller.model_status import Round
from controller.planning.actions import Plan
from controller.redaction import Redactor
from controller.reports.dry_run import DryRunner
from controller.runtimes.base import RuntimeUnavailableError
from controller.state import (
    DesiredState,
    Failure,
    Health,
    ObservedReplica,
    ObservedState,
    Phase,
    PreflightResult,
    ReplicaId,
    ReplicaKey,
)
from controller.state_dir import StoredState
from tests.fakes.fake_runtime import FakeRuntime
from tests.support.definitions import MODELS_ROOT

NOW = 1_000.0
CHAT = "models:\n  chat:\n    backend: stub\n"
OTHERS = "models:\n  lazy:\n    backend: stub\n    enabled: false\n    autoload: true\n  far:\n    backend: openai_remote\n    base_url: http://h/v1\n"  # noqa: E501


class Checks(FakeRuntime):
    """Preflights that fail by model, and how many ran at a time."""

    def __init__(self) -> None:
        super().__init__(lambda: NOW + 0.5)
        self.errors: dict[str, str] = {}
        self.down = False
        self.running = self.most = 0

    async def check_preflight(
        self, model: str, definition: Definition, image: str | None, host: str = ""
    ) -> PreflightResult:
        """As the test says, and not at once."""
        self.calls.append(f"preflight {model}")
        if self.down:
            raise RuntimeUnavailableError("the daemon is down")
        self.running += 1
        self.most = max(self.most, self.running)
        for _ in range(3):
            await asyncio.sleep(0)
        self.running -= 1
        return PreflightResult(model not in self.errors, NOW + 0.5, self.errors.get(model))


@dataclass
class DryRunHarness:
    """A folder of files in force, with all engines running that these want."""

    folder: Path
    runtime: Checks = field(default_factory=Checks)
    overrides: dict[str, Override] = field(default_factory=dict)
    demand: dict[str, float] = field(default_factory=dict)
    rested: dict[str, Evicted] = field(default_factory=dict)
    declarations: RuntimeDeclarations = field(default_factory=RuntimeDeclarations)
    replicas: list[ObservedReplica] | None = None
    failures: dict[ReplicaKey, Failure] = field(default_factory=dict)
    sources: dict[str, PlacedSource] = field(default_factory=dict)
    """Sources whose files are here."""
    redactor: Redactor = field(default_factory=lambda: Redactor(lambda name: name))

    def declared(self) -> DebouncedState:
        parsed = parse_folder(read_folder(self.folder), MODELS_ROOT)
        return combine_declarations(settled_state(parsed), self.declarations, MODELS_ROOT).state

    def desired(self) -> DesiredState:
        found = self.declared()
        declared = {
            name: DeclaredModel(each, found.declared_models[name], 1.0) for name, each in found.definitions.items()
        }
        return resolve_desired(declared, self.stored(), Defaults(), generation=7, sources=self.sources)

    def stored(self) -> StoredState:
        return StoredState(
            overrides=self.overrides, demand=self.demand, rested=self.rested, declarations=self.declarations
        )

    def running(self) -> list[ObservedReplica]:
        """Every wanted engine, ready."""
        return [
            ObservedReplica(
                ReplicaId(model.name, index, model.spec_hash), f"{model.name}-{index}", Phase.RUNNING, 1.0, 1.0,
                Health.READY, 2.0, "http://x",
            )
            for model in self.desired().models.values() if model.runs for index in range(model.replicas)
        ]  # fmt: skip

    async def with_files(self, **files: str | None) -> DryRun:
        return await self.of(
            ProposedFiles(files={f"{stem}.yaml": text and dedent(text) for stem, text in files.items()})
        )

    async def of(self, proposed: ProposedFiles, *loads: Override) -> DryRun:
        replicas = self.running() if self.replicas is None else self.replicas
        desired = self.desired()
        observed = ObservedState(NOW, tuple(replicas), loaded_once=frozenset({"chat"}), failures=self.failures)
        options = DesiredOptions(self.folder, MODELS_ROOT, Defaults(), resync_s=5.0)
        return await DryRunner(options, lambda _: self.sources, self.runtime, self.redactor).run(
            proposed,
            loads,
            current=Round(desired, observed, Plan(desired.generation), ()),
            in_force=self.declared(),
            stored=self.stored(),
            now=NOW,
        )

    async def change(self, chat: str) -> ModelChange:
        """What becomes of `chat` when its definition has these fields too."""
        done = await self.with_files(models=f"{CHAT}{chat}")
        assert done.ok, done.problems
        [change] = done.changes
        return change

    def state(self, action: str, **statement: Any) -> None:
        """An operator's statement about `chat`."""
        declared = self.declared().declared_models["chat"]
        self.overrides["chat"] = Override.from_statement(declared, model="chat", action=action, at=5.0, **statement)
