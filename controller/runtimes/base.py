"""Where replicas run. The two implementations are the only files with side effects on engines."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from controller.schema.desired import Definition
from controller.state import HOST, Exit, Gpu, GpuDriver, Phase, PreflightResult, ReplicaId, UnreadGpu


class RuntimeUnavailableError(Exception):
    """The runtime itself does not answer (the Docker daemon is down). Its state is then unknown, not empty."""


class RuntimeGoneError(RuntimeUnavailableError):
    """Nobody listens at the runtime's address: the runtime is not running, or it created a new socket under the same
    path."""


class StartError(Exception):
    """A start that failed before there was an engine to watch. The message is for the operator."""

    def __init__(self, message: str, *, permanent: bool = False) -> None:
        super().__init__(message)
        self.permanent = permanent


@dataclass(frozen=True, slots=True)
class StartRequest:
    """All that a runtime needs to start one replica."""

    id: ReplicaId
    name: str
    """`rh-<instance>-<slug>-<index>-<hash8>-<attempt>`."""
    definition: Definition
    served_name: str
    image: str | None
    token: str
    """The replica's own; set in the engine's environment, never in labels, argv or logs."""
    claims: Mapping[str, int] = field(default_factory=dict)
    """GPU uuid to MiB, and HOST to MiB of main memory."""

    @property
    def gpus(self) -> tuple[str, ...]:
        """Uuids of the GPUs that the engine sees, and no others."""
        return tuple(uuid for uuid in self.claims if uuid != HOST)


@dataclass(frozen=True, slots=True)
class SeenReplica:
    """One replica of ours as the runtime sees it."""

    id: ReplicaId
    name: str
    phase: Phase
    created_at: float
    started_at: float | None = None
    base_url: str | None = None
    """Where the controller and the gateway reach the engine; None until it has an address."""
    claims: Mapping[str, int] = field(default_factory=dict)
    exit: Exit | None = None
    """Set when EXITED, with the engine's last log lines."""
    image_id: str | None = None
    argv: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rendered:
    """What a replica would be started with now, to be compared with what it runs with."""

    argv: tuple[str, ...]
    image_id: str | None = None
    """Of the image that the reference names now; None: no image, or none is there."""


@dataclass(frozen=True, slots=True)
class LogPart:
    """Lines of a log, and where to go on. `cursor` means something to the runtime that made it only."""

    lines: tuple[str, ...]
    cursor: str
    running: bool
    """False: nothing will follow."""


class Runtime(Protocol):
    """Starts, sees and ends replicas. Every method may raise RuntimeUnavailableError.

    Methods are idempotent: starting a name that exists, or stopping one that is gone, is no error. Replicas are
    known by labels (docker) or records (process), never by what this process remembers; what does not carry this
    instance's id is never listed, stopped or removed.
    """

    kind: str

    async def list_replicas(self) -> list[SeenReplica]:
        """Every replica of this instance, in any phase."""

    async def check_preflight(self, model: str, definition: Definition, image: str | None) -> PreflightResult:
        """Whether a replica could be started: files and image are there, the program exists. Starts nothing."""

    async def pull_image(self, image: str) -> None:
        """Fetch an image. Raises StartError with the registry's own reason."""

    async def start_replica(self, request: StartRequest) -> None:
        """Start one replica; returns when the engine's process was started, long before it is ready."""

    async def stop_replica(self, name: str, grace_s: float) -> None:
        """End a replica (SIGTERM, after `grace_s` SIGKILL), its whole process group, and forget it."""

    async def remove_replica(self, name: str) -> None:
        """Forget a replica that has ended or was never started; its log tail is kept on disk."""

    async def read_log_tail(self, name: str, lines: int = 50) -> str:
        """The engine's last log lines; empty when there are none."""

    async def list_ended_logs(self, model: str) -> builtins.list[str]:
        """Names of the model's replicas that are gone and whose logs are kept, the newest first."""

    async def read_log_after(self, name: str, cursor: str | None, lines: int = 50) -> LogPart | None:
        """What the engine wrote after `cursor`; at first (None) its last lines. None: no log of that name is known."""

    async def render_replica(self, replica: SeenReplica, definition: Definition, image: str | None) -> Rendered | None:
        """What this replica would be started with now, on its own address; None: that cannot be said."""

    async def read_gpus(self) -> tuple[Gpu, ...] | None:
        """The host's GPUs that can be read, their processes with the replicas that they belong to.

        Empty: there are none; None: unknown (they were seen before and cannot be read now).
        """

    async def read_host_mib(self, name: str) -> int | None:
        """Main memory that a running replica holds, in MiB, mapped model files included; None: that is not known."""

    def get_gpu_error(self) -> str | None:
        """Why the last `gpus` was empty or unknown, as a sentence; None: there are figures, or nobody has asked yet."""

    def get_gpu_driver(self) -> GpuDriver | None:
        """The NVIDIA driver by the last `gpus`; None: there is none, or it is not known."""

    def list_unread_gpus(self) -> tuple[UnreadGpu, ...]:
        """The GPUs that the last reading left out, since nothing can be read of them. Each says why."""

    def watch_events(self) -> AsyncIterator[None]:
        """Yields whenever something may have changed. Only a wakeup: what changed is read by `list`."""

    async def close(self) -> None:
        """Release connections. Engines run on."""
