"""Fakes of what the reconciler works with: the runtime, the prober of health, the downloads of sources."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncIterator, Callable, Collection, Mapping

from contract.desired import Definition
from controller.downloads.service import SourceDownloadError
from controller.hosts import Gpu, GpuDriver, UnreadGpu
from controller.observe.health import ProbedHealth
from controller.observe.prober import ProbeTarget
from controller.observe.sleep import SleepError, SleepTarget
from controller.runtimes.base import (
    LogPart,
    Rendered,
    RuntimeGoneError,
    RuntimeUnavailableError,
    SeenReplica,
    StartError,
    StartRequest,
)
from controller.state import Exit, Health, IdleSpan, Phase, PreflightResult


class FakeDownloader:
    """A `SourceDownloader` without a network. `fractions` is the test's to set."""

    def __init__(self) -> None:
        self.fractions: Mapping[str, float] = {}
        self.ordered: list[str] = []
        """Every source that was ordered, in order."""
        self.cancelled: list[str] = []
        self._waits: dict[str, asyncio.Future[None]] = {}

    async def download_source(self, source: str) -> None:
        """Wait until `finish` or `fail`. See `SourceDownloader`."""
        self.ordered.append(source)
        self._waits[source] = asyncio.get_running_loop().create_future()
        await self._waits[source]

    async def cancel_source(self, source: str) -> None:
        self.cancelled.append(source)
        self.fail(source, "its download was cancelled")

    def finish(self, source: str) -> None:
        """End a download that is under way."""
        self._waits.pop(source).set_result(None)

    def fail(self, source: str, reason: str) -> None:
        """Let a download that is under way fail."""
        self._waits.pop(source).set_exception(SourceDownloadError(reason))


class FakeSleeper:
    """A `Sleeper` whose engines are lists of what they were told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.canary = "2, 3, 5"
        self.error: str | None = None
        self.bug: Exception | None = None

    async def put_to_sleep(self, target: SleepTarget) -> None:
        self._note("sleep", target)

    async def wake_engine(self, target: SleepTarget) -> str:
        self._note("wake", target)
        return self.canary

    def _note(self, call: str, target: SleepTarget) -> None:
        self.calls.append((call, target.base_url))
        if self.bug is not None:
            raise self.bug
        if self.error is not None:
            raise SleepError(self.error)


class FakeProber:
    """Knows replicas that run; `ready` is when each became so."""

    def __init__(self) -> None:
        self.ready: dict[str, float] = {}
        self.idle_spans: dict[str, IdleSpan] = {}
        self.requested_probes: list[str] = []
        """Replicas that somebody wanted to be probed at once."""

    def track_targets(self, targets: Mapping[str, ProbeTarget], keep: Collection[str]) -> None:
        """Forget what is neither watched nor kept."""
        known = {*targets, *keep}
        self.ready = {name: since for name, since in self.ready.items() if name in known}
        for name, target in targets.items():
            if target.ready_since is not None:
                self.ready.setdefault(name, target.ready_since)

    async def wait_for_first_round(self) -> None:
        """Nothing is asked."""

    def get_health(self, name: str) -> ProbedHealth:
        since = self.ready.get(name)
        if since is None:
            return ProbedHealth()
        return ProbedHealth(
            health=Health.READY,
            ready_since=since,
            idle=True,
            idle_span=self.idle_spans.get(name),
            probed_at=float("inf"),
        )

    def probe_now(self, name: str, *, then_wake: bool = False) -> None:
        """There is nothing to hurry; it is noted."""
        self.requested_probes.append(name)

    async def close(self) -> None:
        """Nothing to stop."""


class FakeRuntime:
    """Replicas by name; `calls` is what was asked of it, in order."""

    kind = "fake"

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.replicas: dict[str, SeenReplica] = {}
        self.calls: list[str] = []
        self.unavailable: str | None = None
        self.is_gone = False
        self.preflight_error: str | None = None
        self.missing_image: str | None = None
        self.pull_error: str | None = None
        self.start_error: StartError | None = None
        self.start_bug: Exception | None = None
        self.refuses_ends = False
        self.found_gpus: tuple[Gpu, ...] | None = ()
        self.gpu_reason: str | None = None
        self.gpu_driver: GpuDriver | None = None
        self.unread_gpus: tuple[UnreadGpu, ...] = ()
        self.held: dict[str, int | None] = {}
        """Replica name to MiB of main memory."""
        self.logs: dict[str, list[str]] = {}
        """Replica name to the lines that it wrote; stays when the replica is gone."""
        self.rendered_argv: dict[str, Rendered] = {}
        """Replica name to what it would be started with now; others as they run."""
        self.hold = asyncio.Event()
        self.hold.set()

    def _check(self) -> None:
        if self.unavailable is not None:
            raise (RuntimeGoneError if self.is_gone else RuntimeUnavailableError)(self.unavailable)

    async def list_replicas(self) -> list[SeenReplica]:
        self._check()
        return list(self.replicas.values())

    async def check_preflight(
        self, model: str, definition: Definition, image: str | None, host: str = ""
    ) -> PreflightResult:
        self.calls.append(f"preflight {model}")
        self._check()
        error = self.preflight_error or (f"image {image} is missing" if self.missing_image else None)
        return PreflightResult(error is None, self._clock(), error, self.missing_image)

    async def pull_image(self, image: str, host: str = "") -> None:
        self.calls.append(f"pull {image}")
        if self.pull_error is not None:
            raise StartError(self.pull_error)
        self.missing_image = None

    async def start_replica(self, request: StartRequest) -> None:
        """Enter the table, when `hold` lets it."""
        self.calls.append(f"start {request.name}")
        await self.hold.wait()
        self._check()
        if self.start_bug is not None:
            raise self.start_bug
        if self.start_error is not None:
            raise self.start_error
        self.replicas[request.name] = SeenReplica(
            request.id, request.name, Phase.RUNNING, self._clock(), self._clock(), claims=request.claims
        )

    def end(self, name: str, code: int, tail: str = "") -> None:
        seen = self.replicas[name]
        self.replicas[name] = SeenReplica(
            seen.id,
            name,
            Phase.EXITED,
            seen.created_at,
            seen.started_at,
            claims=seen.claims,
            exit=Exit(code, log_tail=tail),
        )

    async def stop_replica(self, name: str, grace_s: float) -> None:
        self.calls.append(f"stop {name}")
        self._check()
        self.replicas.pop(name, None)

    async def remove_replica(self, name: str) -> None:
        self.calls.append(f"remove {name}")
        self._check()
        if self.refuses_ends:
            raise RuntimeUnavailableError("device or resource busy")
        self.replicas.pop(name, None)

    async def read_log_tail(self, name: str, lines: int = 50) -> str:
        """The last of `logs`, and where there is none, one line."""
        return "\n".join(self.logs[name][-lines:]) if name in self.logs else "last words"

    async def list_ended_logs(self, model: str) -> builtins.list[str]:
        """Those of `logs` that are in the table no more and whose names hold the model's."""
        self._check()
        return [name for name in reversed(self.logs) if name not in self.replicas and f"-{model}-" in name]

    async def read_log_after(self, name: str, cursor: str | None, lines: int = 50) -> LogPart | None:
        """The cursor is how many lines were given."""
        self._check()
        if name not in self.logs:
            return None
        written = self.logs[name]
        begin = int(cursor) if cursor else max(0, len(written) - lines)
        seen = self.replicas.get(name)
        return LogPart(tuple(written[begin:]), str(len(written)), seen is not None and seen.phase is not Phase.EXITED)

    async def render_replica(self, replica: SeenReplica, definition: Definition, image: str | None) -> Rendered | None:
        """As the test says, else as it runs."""
        self._check()
        return self.rendered_argv.get(replica.name, Rendered(replica.argv, replica.image_id))

    async def read_gpus(self) -> tuple[Gpu, ...] | None:
        return self.found_gpus

    async def read_host_mib(self, name: str) -> int | None:
        self._check()
        return self.held.get(name)

    def get_gpu_error(self) -> str | None:
        return self.gpu_reason

    def get_gpu_driver(self) -> GpuDriver | None:
        return self.gpu_driver

    def list_unread_gpus(self) -> tuple[UnreadGpu, ...]:
        return self.unread_gpus

    async def watch_events(self) -> AsyncIterator[None]:
        """None: tests run rounds themselves."""
        await asyncio.Event().wait()
        yield

    async def close(self) -> None:
        """Nothing to release."""
