"""Any sequence of loads, unloads, edits, crashes and restarts ends where the last statement says.

The loop, the files, the state folder and the desk are real; engines and probes are fakes, and the clock is the test's.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from contract.errors import RoundhouseError
from contract.status import ModelState
from controller.runtimes.base import StartError
from tests.support.campaign import campaign_count
from tests.support.controller_harness import AddressedRuntime, ControllerHarness

MOST_ROUNDS = 60
REMOTE = "  r:\n    backend: openai_remote\n    base_url: http://127.0.0.1:9/v1\n    enabled: false\n"
"""A remote that nobody wants: nothing ever happens to it."""


class Statements(RuleBasedStateMachine):
    """What was said, and what comes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.root = Path(tempfile.mkdtemp(prefix="rhstate"))
        (self.root / "desired").mkdir()
        self.time = [1_000.0]
        self.runtime = AddressedRuntime(lambda: self.time[0])
        self.declared: dict[str, Any] = {
            "enabled": True,
            "replicas": 1,
            "replica_max": 3,
            "autoload": False,
            "stub_text": "a",
        }
        self.last: tuple[str, int | None] | None = None
        """The statement that stands, by this test's account: a load and its replicas, or an unload: hold or free."""
        self.asked_at: float | None = None
        """When a request asked for the model."""

    @initialize()
    def begin(self) -> None:
        self._write()
        self.harness = self._start()
        self._rounds(1)

    def _start(self) -> ControllerHarness:
        async def start() -> ControllerHarness:
            harness = ControllerHarness(self.root, self.runtime, self.time)
            await harness.files.read_files()
            return harness

        return self.loop.run_until_complete(start())

    def _write(self) -> None:
        lines = "".join(f"    {key}: {str(value).lower()}\n" for key, value in self.declared.items())
        (self.root / "desired" / "models.yaml").write_text(f"models:\n  m:\n    backend: stub\n{lines}{REMOTE}")

    def _rounds(self, count: int) -> None:
        async def rounds() -> None:
            for _ in range(count):
                done = await self.harness.reconciler.run_round()
                assert done is not None, self.harness.reconciler.error
                await self.harness.operations.wait_until_idle()
                self.time[0] += 0.1

        self.loop.run_until_complete(rounds())

    def _state(self) -> ModelState:
        return self.harness.admin_service.read_current_state().statuses[0].state

    @rule(replicas=st.sampled_from((None, None, 1, 2, 3, 4)))
    def load(self, replicas: int | None) -> None:
        before, pinned = self._state(), self._ruling() == "autoload"
        taken = before in (ModelState.UNLOADED, ModelState.FAILED)
        refusal = None
        try:
            self.harness.admin_service.load_model("m", {}, replicas, actor="test")
        except RoundhouseError as error:
            refusal = error.entry.code
        if replicas == 4:
            assert refusal == "invalid_load_request"
        elif before is ModelState.UNLOADING:
            assert refusal == "state_conflict"
        elif replicas is not None and not taken:
            assert refusal == "invalid_load_request"
        else:
            assert refusal is None
            if taken or pinned:
                self._said("load", replicas)

    @rule(hold=st.booleans())
    def unload(self, hold: bool) -> None:
        wanted, word = self._wanted(), "hold" if hold else "free"
        self.harness.admin_service.unload_model("m", hold=hold, actor="test")
        same = self.last is not None and self.last[0] == word
        if wanted or (self.declared["autoload"] and not same):
            self._said(word, None)

    def _said(self, word: str, replicas: int | None) -> None:
        self.last = (word, replicas)
        if word != "load":
            self.asked_at = None

    @precondition(lambda self: self.declared["autoload"])
    @rule()
    def a_request_comes(self) -> None:
        # A gateway asks by the table that it has: what was said just now must have come to it.
        self._rounds(1)
        self.asked_at = self.time[0]
        self.harness.ask_for("m", self.time[0])

    @rule()
    def reset(self) -> None:
        self.harness.admin_service.reset_model("m", actor="test")
        self.last = None

    @rule(enabled=st.booleans(), replicas=st.integers(1, 3), autoload=st.booleans(), text=st.sampled_from("ab"))
    def edit(self, enabled: bool, replicas: int, autoload: bool, text: str) -> None:
        before = dict(self.declared)
        self.declared.update(enabled=enabled, replicas=replicas, autoload=autoload, stub_text=text)
        self._write()
        self.loop.run_until_complete(self.harness.files.read_files())
        restated = (before["enabled"], before["replicas"]) != (enabled, replicas)
        if restated:
            self.last = None
        if restated or not autoload:
            self.asked_at = None

    @rule()
    def break_the_file_and_mend_it(self) -> None:
        (self.root / "desired" / "models.yaml").write_text("models: [")
        self.loop.run_until_complete(self.harness.files.read_files())
        self._rounds(1)
        self._write()
        self.loop.run_until_complete(self.harness.files.read_files())

    @rule()
    def ready(self) -> None:
        for name in self.runtime.replicas:
            self.harness.prober.ready.setdefault(name, self.time[0])

    @precondition(lambda self: self.runtime.replicas)
    @rule(which=st.integers(0, 5))
    def crash(self, which: int) -> None:
        names = sorted(self.runtime.replicas)
        self.runtime.end(names[which % len(names)], 139, "boom")

    @rule(fails=st.booleans())
    def starts_fail(self, fails: bool) -> None:
        self.runtime.start_error = StartError("no such device") if fails else None

    @rule()
    def restart_the_controller(self) -> None:
        self.harness.end()
        self.harness = self._start()
        self._rounds(1)

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        self.harness.files.set_paused(paused)

    @rule(lags=st.booleans(), holds=st.booleans())
    def a_gateway_is_slow(self, lags: bool, holds: bool) -> None:
        hub = self.harness.hub
        hub.slow_reports()
        hub.lags, hub.holds = lags, frozenset(self.runtime.replicas) if holds else frozenset()
        hub.slow_reports()

    @invariant()
    def nothing_happens_to_a_remote_that_nobody_wants(self) -> None:
        table = self.harness.hub.table
        states = {route.name: route.state for route in table.models} if table is not None else {}
        assert states.get("r", ModelState.UNLOADED) is ModelState.UNLOADED

    @invariant()
    def no_name_is_used_twice(self) -> None:
        started_names = Counter(call for call in self.runtime.calls if call.startswith("start "))
        assert max(started_names.values(), default=1) == 1, started_names.most_common(3)

    @rule(count=st.integers(1, 4))
    def time_passes(self, count: int) -> None:
        self._rounds(count)

    @rule()
    def much_time_passes(self) -> None:
        self.time[0] += 400.0
        self._rounds(1)

    def _ruling(self) -> str:
        word = self.last[0] if self.last is not None else None
        asked = self.declared["autoload"] and self.asked_at is not None
        if word == "free" and asked:
            word = None
        return word or ("autoload" if asked else "file")

    def _wanted(self) -> int:
        declared, ruling = int(self.declared["replicas"]), self._ruling()
        if ruling == "load":
            assert self.last is not None
            return self.last[1] or declared
        if ruling == "file":
            return declared if self.declared["enabled"] else 0
        return declared if ruling == "autoload" else 0

    def teardown(self) -> None:
        try:
            if hasattr(self, "harness"):
                self._settle()
        finally:
            if hasattr(self, "harness"):
                self.harness.end()
            self.loop.close()
            shutil.rmtree(self.root)

    def _settle(self) -> None:
        self.runtime.start_error = None
        self.harness.files.set_paused(False)
        self.a_gateway_is_slow(lags=False, holds=False)
        wanted = self._wanted()
        goal = ModelState.LOADED if wanted else ModelState.UNLOADED
        for _ in range(MOST_ROUNDS):
            self.ready()
            self._rounds(1)
            self.time[0] += 30.0
            status = self.harness.admin_service.read_current_state().statuses[0]
            current = [replica for replica in status.replicas if not replica.outdated]
            if status.state is goal and len(current) == len(self.runtime.replicas) == wanted:
                break
        assert (status.state, status.wanted_replicas, len(self.runtime.replicas)) == (goal, wanted, wanted), status
        assert len(current) == wanted, "all run what is declared"


Statements.TestCase.settings = settings(max_examples=campaign_count(15, 1_000), stateful_step_count=25)
TestStatements = Statements.TestCase
