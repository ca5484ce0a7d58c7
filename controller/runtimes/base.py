"""The protocol of runtimes, which run replicas. Only its two implementations have side effects on engines."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from controller.schema.desired import Definition
from controller.state import HOST, Exit, Gpu, GpuDriver, Phase, PreflightResult, ReplicaId, UnreadGpu


class RuntimeUnavailableError(Exception):
    """The runtime does not answer, say because the Docker daemon is down. What runs there is unknown, not empty."""


class RuntimeGoneError(RuntimeUnavailableError):
    """Nothing listens at the runtime's address: the runtime is not running, or it created a new socket under the same
    path."""


class StartError(Exception):
    """A start failed before an engine ran. The message is written for operators."""

    def __init__(self, message: str, *, permanent: bool = False) -> None:
        """`permanent`: another start of the same definition cannot succeed."""
        super().__init__(message)
        self.permanent = permanent


@dataclass(frozen=True, slots=True)
class StartRequest:
    """Everything that a runtime needs to start one replica."""

    id: ReplicaId
    name: str
    """`rh-<instance>-<slug>-<index>-<hash8>-<attempt>`."""
    definition: Definition
    served_name: str
    image: str | None
    token: str
    """The replica's own bearer token. It is set in the engine's environment, never in labels, argv or logs."""
    claims: Mapping[str, int] = field(default_factory=dict)
    """GPU uuid to MiB, and HOST to MiB of main memory."""

    @property
    def gpus(self) -> tuple[str, ...]:
        """Uuids of the claimed GPUs. The engine must see these and no others."""
        return tuple(uuid for uuid in self.claims if uuid != HOST)


@dataclass(frozen=True, slots=True)
class SeenReplica:
    """One replica of this instance as the runtime sees it. Times are Unix times in seconds."""

    id: ReplicaId
    name: str
    phase: Phase
    created_at: float
    started_at: float | None = None
    base_url: str | None = None
    """URL at which the controller and the gateways reach the engine; None until it has an address."""
    claims: Mapping[str, int] = field(default_factory=dict)
    """The claims that the replica was started with: GPU uuid to MiB, and HOST to MiB of main memory."""
    exit: Exit | None = None
    """How the replica ended, with the engine's last log lines. Set if and only if the phase is EXITED."""
    image_id: str | None = None
    argv: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rendered:
    """What a running replica would be started with now, for comparison with what it was started with."""

    argv: tuple[str, ...]
    image_id: str | None = None
    """Id of the image that the image reference names now. None: the runtime has no images, or the image is missing."""


@dataclass(frozen=True, slots=True)
class LogPart:
    """Some lines of a replica's log, and the position after them."""

    lines: tuple[str, ...]
    cursor: str
    """Position to pass to the next `read_log_after`. Only the runtime that made it can interpret it."""
    running: bool
    """False: the log has ended, and no more lines will follow."""


class Runtime(Protocol):
    """Starts, lists and stops replicas. Every method may raise RuntimeUnavailableError.

    Methods are idempotent: it is no error to start a name that exists, or to stop one that is gone. A runtime finds
    replicas by their labels (docker) or records (process), not from memory, so they survive a restart of the
    controller. It never lists, stops or removes anything without this instance's id.
    """

    kind: str
    """`docker` or `process`."""

    async def list_replicas(self) -> list[SeenReplica]:
        """Return every replica of this instance, in any phase."""

    async def check_preflight(self, model: str, definition: Definition, image: str | None) -> PreflightResult:
        """Check whether a replica could be started: model files, image and program exist. Starts nothing.

        A check that fails does not raise; the result says why.
        """

    async def pull_image(self, image: str) -> None:
        """Pull an image from its registry. Raises StartError with the registry's own reason."""

    async def start_replica(self, request: StartRequest) -> None:
        """Start one replica. Returns once the engine's process runs, long before the engine is ready.

        Raises StartError, after which nothing of the replica is left.
        """

    async def stop_replica(self, name: str, grace_s: float) -> None:
        """End a replica and remove it: SIGTERM to its whole process group, SIGKILL after `grace_s` seconds. The end of
        its log stays on disk. Returns once it is gone; does nothing if the name is unknown."""

    async def remove_replica(self, name: str) -> None:
        """Remove a replica that has ended or was never started. The end of its log stays on disk.

        If the name is unknown or the replica runs, do nothing; that is no error. Only `stop_replica` ends one that
        runs.
        """

    async def read_log_tail(self, name: str, lines: int = 50) -> str:
        """Return the engine's last log lines; empty if there are none."""

    async def list_ended_logs(self, model: str) -> builtins.list[str]:
        """Return the names of the model's removed replicas whose logs are kept, newest first."""

    async def read_log_after(self, name: str, cursor: str | None, lines: int = 50) -> LogPart | None:
        """Return what the engine wrote after `cursor`. With None, return its last `lines` lines.

        Returns None if no log of that replica is known.
        """

    async def render_replica(self, replica: SeenReplica, definition: Definition, image: str | None) -> Rendered | None:
        """Return what a running replica would be started with now, at its present address; None if that is unknown."""

    async def read_gpus(self) -> tuple[Gpu, ...] | None:
        """Return the host's GPUs that can be read. Their processes name the replicas that they belong to.

        Empty: the host has none. None: unknown, since GPUs were read before and cannot be read now.
        """

    async def read_host_mib(self, name: str) -> int | None:
        """Return the MiB of main memory that a running replica holds, including mapped model files; None: unknown."""

    def get_gpu_error(self) -> str | None:
        """Return why the last `read_gpus` found no GPU or failed, as a sentence.

        None if it found GPUs, or was never called.
        """

    def get_gpu_driver(self) -> GpuDriver | None:
        """Return the NVIDIA driver that the last `read_gpus` found; None: there is none, or it is not known."""

    def list_unread_gpus(self) -> tuple[UnreadGpu, ...]:
        """Return the GPUs that the last `read_gpus` left out because they cannot be read, each with the reason."""

    def watch_events(self) -> AsyncIterator[None]:
        """Yield whenever replicas may have changed, until `close`. What has changed must be read by `list_replicas`."""

    async def close(self) -> None:
        """Release connections, and end `watch_events`. Engines go on running."""
