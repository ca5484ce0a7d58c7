"""The protocol of runtimes, which run replicas, and the names and tokens of replicas. Pure; only the two
implementations of the protocol have side effects on engines.
"""

from __future__ import annotations

import builtins
import hashlib
import hmac
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from contract.desired import Definition
from controller.hosts import HOST, Gpu, GpuDriver, UnreadGpu
from controller.state import Exit, Phase, PreflightResult, ReplicaId


class RuntimeUnavailableError(Exception):
    """The runtime does not answer, for example because the Docker daemon is down, or it could not do what it was asked
    to, for example because a container does not end. What runs there is unknown, not empty. The caller may try again
    later. Its subclasses are raised, too: RuntimeGoneError, DaemonRefusedError and DockerSetupError."""


class RuntimeGoneError(RuntimeUnavailableError):
    """Nothing listens at the runtime's address: the runtime is not running, or it was restarted and has a new socket,
    which a controller in a container may reach only after its own restart. Only the docker runtime raises it. It is a
    RuntimeUnavailableError."""


class StartError(Exception):
    """A start, or the pull of an image for it, failed before an engine ran. The message is written for operators."""

    def __init__(self, message: str, *, permanent: bool = False, plain: str | None = None) -> None:
        """`permanent`: another start of the same definition cannot succeed. False: it may succeed later. `plain`: the
        message for clients, as `Verdict.plain`; None: the message itself, which has no words of Docker's."""
        super().__init__(message)
        self.permanent = permanent
        self.plain = plain


RENDER_ERRORS: Final = (ValueError, TypeError, KeyError)
"""What is raised for a definition that yields no command line."""


def no_command_error(model: str, error: Exception) -> StartError:
    """Return (not raise) the permanent error of a start of `model` whose definition yields no command line: rendering
    raised `error`, one of `RENDER_ERRORS` (ValueError, TypeError, KeyError)."""
    plain = f"the definition of {model} cannot be turned into a command line"
    return StartError(f"{plain}: {error}", permanent=True, plain=plain)


@dataclass(frozen=True, slots=True)
class StartRequest:
    """Everything that a runtime needs to start one replica. `image` None: the backend's default image. `claims`: MiB by
    GPU uuid, and by HOST for main memory."""

    id: ReplicaId
    name: str
    """`rh-<instance>-<slug>-<index>-<hash8>-<attempt>`."""
    definition: Definition
    served_name: str
    """Name of the model in requests to the engine."""
    image: str | None
    """Container image; None: the backend's default image. The process runtime ignores it."""
    token: str
    """The replica's own bearer token. It is set in the engine's environment, never in labels, argv or logs."""
    claims: Mapping[str, int] = field(default_factory=dict)
    host: str = ""
    """Name of the host to start it on, as in `Host.name`. A runtime of one host does not look at it; so with the `host`
    of its methods."""

    @property
    def gpus(self) -> tuple[str, ...]:
        """Uuids of the claimed GPUs, in the order of `claims`; empty: none. The engine must see these and no others."""
        return tuple(uuid for uuid in self.claims if uuid != HOST)


@dataclass(frozen=True, slots=True)
class SeenReplica:
    """One replica of this instance as the runtime sees it. Times are Unix times in seconds. `exit` is set if and only
    if the replica has ended; `base_url` is None while it has no address. `claims`: those of its start, MiB by GPU uuid
    or HOST."""

    id: ReplicaId
    name: str
    phase: Phase
    created_at: float
    started_at: float | None = None
    """When the engine's process was started; None: it was not, or the time is not known."""
    base_url: str | None = None
    claims: Mapping[str, int] = field(default_factory=dict)
    exit: Exit | None = None
    image_id: str | None = None
    """Id of the image that the container was made of; None: the replica is a process."""
    argv: tuple[str, ...] = ()
    """The engine's command line, program first."""
    host: str = ""
    """Name of the host that it runs on, as in `Host.name`."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """What `Runtime.render_replica` returns: with what a running replica would be started now. Drift detection compares
    it with `SeenReplica.argv` and `image_id`, with which the replica was started."""

    argv: tuple[str, ...]
    image_id: str | None = None
    """Id of the image that the image reference names now. None: the runtime has no images, or the image is missing."""


@dataclass(frozen=True, slots=True)
class LogPart:
    """Some lines of a replica's log, oldest first and without newlines, and the position after them (`cursor`).
    `running` False: the log has ended, and no lines follow."""

    lines: tuple[str, ...]
    """May be empty although the log goes on."""
    cursor: str
    """Position to pass to the next `read_log_after`. Only the runtime that made it can interpret it."""
    running: bool


class Runtime(Protocol):
    """Starts, lists and stops replicas. Every coroutine method except `close` may raise RuntimeUnavailableError.

    Methods are idempotent: it is no error to start a name that exists, or to stop one that is gone. A runtime finds
    replicas by their labels (docker) or records (process), not from memory, so they survive a restart of the
    controller. It never lists, stops or removes anything without this instance's id: names must be replica names of
    this instance. Use one object in one event loop, and call `close` once at the end.
    """

    kind: str
    """`docker` or `process`."""

    async def list_replicas(self) -> list[SeenReplica]:
        """Return every replica of this instance, in any phase, in no particular order; empty if there are none. One
        whose labels cannot be read (docker) is left out. Raises RuntimeUnavailableError, also for a record that cannot
        be read (process)."""

    async def check_preflight(
        self, model: str, definition: Definition, image: str | None, host: str = ""
    ) -> PreflightResult:
        """Check whether a replica could be started: model files, image and program exist. Starts and pulls nothing. A
        check that fails does not raise; the result says why. If only the image is missing and may be pulled, the result
        names it (`missing_image`). `image` None: the backend's default image. Whether GPUs or memory are free is not
        checked. Raises RuntimeUnavailableError."""

    async def pull_image(self, image: str, host: str = "") -> None:
        """Pull an image from its registry, and return when it is there, however long that takes. Raises StartError with
        the registry's own reason; the process runtime, which has no images, always raises it. Raises
        RuntimeUnavailableError."""

    async def start_replica(self, request: StartRequest) -> None:
        """Start one replica. Returns once the engine's process runs, long before the engine is ready. Does nothing if a
        replica of that name was started before, even if it has ended. The caller must have pulled the image. Raises
        StartError if the start fails, permanent if the definition yields no command line; nothing of the replica is
        left then. Raises RuntimeUnavailableError; the replica may have been started all the same."""

    async def stop_replica(self, name: str, grace_s: float) -> None:
        """End a replica and remove it. The end of its log stays on disk. Does nothing if the name is unknown.

        A process and its children get SIGTERM; a container gets its image's stop signal (SIGTERM by default). SIGKILL
        follows after `grace_s` seconds. Returns once the replica is gone. The process runtime waits for that without
        limit; docker raises RuntimeUnavailableError if the container does not end after SIGKILL either. Raises
        RuntimeUnavailableError also if the runtime does not answer.
        """

    async def remove_replica(self, name: str) -> None:
        """Remove a replica that has ended or was never started. The end of its log stays on disk. If the name is
        unknown or the replica runs, do nothing; that is no error. Only `stop_replica` ends one that runs. Raises
        RuntimeUnavailableError."""

    async def read_log_tail(self, name: str, lines: int = 50) -> str:
        """Return the engine's last log lines as one text, also those of a removed replica whose log was kept. Empty if
        there are none. The text has fewer than `lines` lines if these are very long. `name` must be a replica name of
        this instance: it becomes a file name unchecked. Raises RuntimeUnavailableError."""

    async def list_ended_logs(self, model: str) -> builtins.list[str]:
        """Return the names of the model's removed replicas whose logs are kept, newest first; empty: there are none.
        Raises RuntimeUnavailableError."""

    async def read_log_after(self, name: str, cursor: str | None, lines: int = 50) -> LogPart | None:
        """Return what the engine wrote after `cursor`, the `LogPart.cursor` of an earlier call, in whole lines.

        With None, or with a text that is no cursor of this runtime, return the last `lines` lines. Does not wait for
        new lines: the part may be empty. With a cursor, a part may end before the log does; call again with its cursor
        while `LogPart.running` is true. Returns None if `name` is no replica name of this instance, or if no log of it
        is known. Raises RuntimeUnavailableError.
        """

    async def render_replica(self, replica: SeenReplica, definition: Definition, image: str | None) -> Rendered | None:
        """Return what a running replica would be started with now, at its present address. None if that is unknown,
        since the definition yields no command line or a claimed GPU cannot be read. `image` None: the backend's default
        image. Raises RuntimeUnavailableError."""

    async def read_gpus(self) -> tuple[Gpu, ...] | None:
        """Return the host's GPUs that can be read, in PCI order, MIG instances in place of a GPU in MIG mode. Their
        processes name the replicas that they belong to, where that is known. Empty: the host has none, or has no NVIDIA
        driver that could tell. None: unknown, since the driver or all GPUs fail, or since GPUs were read before and the
        driver is gone now. Raises RuntimeUnavailableError."""

    async def read_host_mib(self, name: str) -> int | None:
        """Return the MiB of main memory that a running replica holds, including mapped model files. None if that is
        unknown, or if no such replica runs; never 0. Raises RuntimeUnavailableError."""

    def get_gpu_error(self) -> str | None:
        """Return why the last `read_gpus` found no GPU or failed, as a sentence. None if it found GPUs, or was never
        called."""

    def get_gpu_driver(self) -> GpuDriver | None:
        """Return the NVIDIA driver that the last `read_gpus` found; None: there is none, or it is not known, as before
        the first `read_gpus`."""

    def list_unread_gpus(self) -> tuple[UnreadGpu, ...]:
        """Return the GPUs that the last `read_gpus` left out because they cannot be read, each with the reason. Empty
        if there are none, or before the first `read_gpus`."""

    def watch_events(self) -> AsyncIterator[None]:
        """Yield whenever replicas may have changed, until `close`. What has changed must be read by `list_replicas`.
        Several changes may yield once, and a change before the first step of the iteration may be missed. A lost
        connection to the Docker daemon raises nothing: it is made again. The process runtime reports only ends of
        engines that `list_replicas` or `start_replica` saw running."""

    async def close(self) -> None:
        """Release connections, and end `watch_events`. Engines go on running. Does not raise
        RuntimeUnavailableError."""


LONGEST_NAME: Final = 63
"""Characters of a replica's name at most. A container's name is a DNS label on its network (RFC 1035)."""

_INSTANCE: Final = re.compile(r"[a-z0-9]{1,16}")
_NAME: Final = re.compile(r"rh-[a-z0-9]{1,16}(-[a-z0-9]+)+")
_PLAIN: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_DIGEST_AT_END: Final = re.compile(r"(^|-)[0-9a-f]{8}$")
_INDEX_DIGITS: Final = 3
_ATTEMPT_DIGITS: Final = 6


def replica_name(instance: str, replica: ReplicaId) -> str:
    """Return `rh-<instance>-<slug>-<index>-<hash8>-<attempt>`, a DNS label and valid container name. The slug is the
    model's name. If that is too long, has characters that a DNS label may not have, or ends like a digest itself, the
    slug is changed and ends with a digest of the name, so that `a.b` and `a-b` differ. Raises ValueError for an invalid
    instance."""
    if not _INSTANCE.fullmatch(instance):
        raise ValueError(f"instance {instance!r} is not 1 to 16 lower case letters and digits")
    index, attempt = str(replica.index), str(replica.attempt)
    frame = f"rh-{instance}--{replica.spec_hash[:8]}--"
    # Room for the longest index and attempt, so that a model's slug is the same for all its replicas.
    digits = max(_INDEX_DIGITS, len(index)) + max(_ATTEMPT_DIGITS, len(attempt))
    slug = _slug(replica.model, LONGEST_NAME - len(frame) - digits)
    return f"rh-{instance}-{slug}-{index}-{replica.spec_hash[:8]}-{attempt}"


def is_replica_name(instance: str, name: str) -> bool:
    """Return whether a text from outside has the form of a replica name of this instance. Whether there is or was such
    a replica is not checked. Such a text is short and contains no path, so it can be used as a file name."""
    has_prefix = name.startswith(f"rh-{instance}-") and len(name) <= LONGEST_NAME
    return has_prefix and _NAME.fullmatch(name) is not None


def names_of(instance: str, model: str) -> re.Pattern[str]:
    """Return a pattern for `fullmatch` that matches the names of a model's replicas, of any index, spec hash and
    attempt. Raises ValueError for an invalid instance."""
    sample = replica_name(instance, ReplicaId(model, 0, "0" * 8, 0))
    return re.compile(re.escape(sample.removesuffix("-0-00000000-0")) + r"-\d+-[0-9a-f]{8}-\d+")


def _slug(model: str, max_length: int) -> str:
    is_plain = _PLAIN.fullmatch(model) is not None and len(model) <= max_length
    if is_plain and not _DIGEST_AT_END.search(model):
        return model
    digest = hashlib.sha256(model.encode()).hexdigest()[:8]
    stem = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")
    return f"{stem[: max_length - len(digest) - 1].rstrip('-')}-{digest}".lstrip("-")


def replica_token(secret: bytes, name: str) -> str:
    """Return the replica's own bearer token: the HMAC-SHA256 of its name in hex, with the instance's `secret` as the
    key. The same arguments always give the same token, so that nothing has to store it."""
    return hmac.new(secret, name.encode(), hashlib.sha256).hexdigest()
