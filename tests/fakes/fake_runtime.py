"""A fake of `controller.runtimes.base.Runtime`: engines are entries in a table, and the host can be made to fail."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncIterator, Callable

from controller.gpus import Gpu, GpuDriver, UnreadGpu
from controller.runtimes.base import (
    LogPart,
    Rendered,
    RuntimeGoneError,
    RuntimeUnavailableError,
    SeenReplica,
    StartError,
    StartRequest,
)
from controller.schema.desired import Definition
from controller.state import Exit, Phase, PreflightResult


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

    async def check_preflight(self, model: str, definition: Definition, image: str | None) -> PreflightResult:
        self.calls.append(f"preflight {model}")
        self._check()
        error = self.preflight_error or (f"image {image} is missing" if self.missing_image else None)
        return PreflightResult(error is None, self._clock(), error, self.missing_image)

    async def pull_image(self, image: str) -> None:
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
