"""The runtime that runs replicas as containers of one Docker daemon.

docs/docker.md describes what each container is given, and how it is restricted.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

import docker

from contract.desired import Definition
from controller.artifacts.heads import ArtifactError
from controller.artifacts.model_roots import ModelRoots
from controller.artifacts.read import locate_path
from controller.engines import get_engine
from controller.engines.base import ClaimedGpu, Launch
from controller.hosts import HOST, Gpu, GpuDriver, UnreadGpu
from controller.runtimes.base import (
    RENDER_ERRORS,
    LogPart,
    Rendered,
    RuntimeUnavailableError,
    SeenReplica,
    StartError,
    StartRequest,
    is_replica_name,
    no_command_error,
)
from controller.runtimes.docker.client import (
    Daemon,
    DaemonRefusedError,
    DockerSetupError,
    EventWatch,
    Surroundings,
    copy_detached,
    ensure_networks,
    inspect_surroundings,
    remove_networks,
)
from controller.runtimes.docker.container_spec import (
    REPLICA_ROLE,
    ROLE,
    UNPRIVILEGED,
    FileEntry,
    HostContext,
    UnreadableLabelsError,
    UserIdentity,
    choose_identity,
    container_config,
    is_own,
    models_targets,
    own_filter,
    phase_of,
    render_context,
    seen_replica,
)
from controller.runtimes.docker.containers import (
    ExitTails,
    Inspected,
    build_command,
    container_host_mib,
    find_replica,
    image_environment,
    image_id,
    is_built_here,
    labels_of,
    own_containers,
    pids_of,
    pull_image,
    read_ended_part,
    read_log,
    read_log_part,
    remove_container,
    start_replica,
    stop_container,
)
from controller.runtimes.docker.gpus import GpuProbe
from controller.runtimes.docker.start_problems import find_driver_problem, find_loader_problem, start_error
from controller.runtimes.gpus import GpuOwners, describe_claims, find_claimed_gpus, is_wsl2, visible_gpus
from controller.runtimes.logs import EndedLogs, plain_tail
from controller.runtimes.model_files import Mounts, check_model, find_broken_link, find_engine_paths, mount_roots
from controller.runtimes.nvml import NvmlReader
from controller.state import Phase, PreflightResult

__all__ = ["DockerRuntime", "DockerSetupError", "open_docker"]

LOOK_TIMEOUT_S: Final = 10
"""Timeout of requests that only read, in seconds."""
ACT_TIMEOUT_S: Final = 120
"""Timeout of requests that change something, in seconds. A start with GPUs may take half a minute on a host whose
driver does not stay loaded."""
CLOSE_S: Final = 5.0
"""Seconds that the cleanup on closing may take."""
_LOOKED_AT: Final = 10_000
"""Files of one model whose owners are checked at most."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class DockerOptions:
    """Where and for whom a Docker runtime keeps engines."""

    instance: str
    """Id of this installation."""
    models: ModelRoots
    state: Path
    """The state folder, in which the ends of logs are kept."""
    images: Mapping[str, str]
    """Default images by kind: `llama-server`, `worker` and `controller`."""
    engines_network: str
    """Name of the network that engines join."""
    log_mib: int = 16
    """MiB of each engine's output that are kept."""
    docker_url: str | None = None
    """Address of the daemon; None: DOCKER_HOST, else the default socket."""


async def open_docker(options: DockerOptions) -> DockerRuntime:
    """Create a Docker runtime, and check that its daemon answers. The caller must close the runtime. Raises
    RuntimeUnavailableError if the daemon does not answer, and its subclass DockerSetupError if engines could not be
    reached or not be given the models. Nothing is left open then."""
    runtime = DockerRuntime(options)
    try:
        await runtime.get_surroundings()
    except BaseException:
        await runtime.close()
        raise
    return runtime


class DockerRuntime:
    """Starts, lists and stops replicas as containers of one Docker daemon. Its methods promise what those of
    `controller.runtimes.base.Runtime` do; every coroutine method but `close` may raise RuntimeUnavailableError. Use one
    object in one event loop only. Call `close` at the end; engines go on."""

    kind = "docker"

    def __init__(self, options: DockerOptions, nvml: NvmlReader | None = None) -> None:
        """It connects to the daemon at the first call. `nvml`: reads GPUs; None: the NVML library of this process."""
        instance, images = options.instance, options.images
        self._instance = instance
        self._roots = options.models.absolute()
        self._images = images
        self._network = options.engines_network
        self._network_lock = asyncio.Lock()
        self._log_mib = options.log_mib
        # Reads must not wait for starts, which may take long: each kind has its own threads.
        self._read_daemon = Daemon(options.docker_url, timeout_s=LOOK_TIMEOUT_S, threads=4)
        self._write_daemon = Daemon(options.docker_url, timeout_s=ACT_TIMEOUT_S, threads=12)
        self._nvml = nvml or NvmlReader()
        self._probe = GpuProbe(self._write_daemon, instance, images.get("controller", "roundhouse/controller:latest"))
        self._is_wsl2 = is_wsl2(os.uname().release, has_dxg=Path("/dev/dxg").exists())
        self._uses_probe = False
        self._owners = GpuOwners(self._processes)
        self._tails = ExitTails()
        self._ended_logs = EndedLogs(options.state / "logs" / "ended")
        self._watches: set[EventWatch] = set()
        self._pull_stops: set[threading.Event] = set()
        self._unreadable_ids: set[str] = set()
        self._surroundings: Surroundings | None = None
        self._surroundings_lock = asyncio.Lock()

    async def get_surroundings(self) -> Surroundings:
        """Return how the daemon sees this controller. The daemon is asked once; its answer is cached, an error is not.
        Raises RuntimeUnavailableError if the daemon does not answer or refuses, and its subclass DockerSetupError if
        engines could not be reached or not be given the models."""
        async with self._surroundings_lock:
            if self._surroundings is None:
                roots, network = self._roots, self._network
                self._surroundings = await self._read_daemon.call(
                    lambda client: inspect_surroundings(client, roots, network)
                )
            return self._surroundings

    # Seeing

    async def list_replicas(self) -> list[SeenReplica]:
        """Return every replica of this instance, in any phase. Containers with unreadable labels are left out, with one
        warning each in the log."""
        publishes_ports = (await self.get_surroundings()).publishes_ports

        def look(client: docker.APIClient) -> list[tuple[Inspected, str]]:
            containers = [each for each in own_containers(client, self._instance) if _is_replica(each, self._instance)]
            self._tails.keep_only({str(each["Id"]) for each in containers})
            exited_phase = Phase.EXITED
            return [
                (each, self._tails.read_tail(client, each) if phase_of(each) is exited_phase else "")
                for each in containers
            ]

        replicas: list[SeenReplica] = []
        for container, log_tail in await self._read_daemon.call(look):
            try:
                replicas.append(seen_replica(container, log_tail, publishes_ports=publishes_ports))
            except UnreadableLabelsError as error:
                self._report_unreadable(container, error)
        return replicas

    def _report_unreadable(self, container: Inspected, error: UnreadableLabelsError) -> None:
        if container["Id"] not in self._unreadable_ids:
            self._unreadable_ids.add(container["Id"])
            log.warning("container %s is left alone, its labels cannot be read: %s", container["Name"], error)

    async def read_log_tail(self, name: str, lines: int = 50) -> str:
        """Return the engine's last log lines, also those of a removed replica whose log was kept; empty: none. `name`
        must be a replica name of this instance. Raises RuntimeUnavailableError."""

        def read(client: docker.APIClient) -> bytes | None:
            container = find_replica(client, self._instance, name)
            return None if container is None else read_log(client, container["Id"], max(lines, 400))

        data = await self._read_daemon.call(read)
        if data is None:
            data = await asyncio.to_thread(self._ended_logs.read_log, name) or b""
        return plain_tail(data, lines)

    async def list_ended_logs(self, model: str) -> builtins.list[str]:
        """Return the names of the model's removed replicas whose logs are kept, newest first. Asks no daemon. Raises
        RuntimeUnavailableError if the folder of kept logs cannot be read."""
        try:
            return await asyncio.to_thread(self._ended_logs.list_names, self._instance, model)
        except OSError as error:
            raise RuntimeUnavailableError(f"the kept logs cannot be read: {error}") from error

    async def read_log_after(self, name: str, cursor: str | None, lines: int = 50) -> LogPart | None:
        """Return what the engine wrote after `cursor`, of an earlier `LogPart`, in whole lines, perhaps none. `cursor`
        None: the last `lines` lines. Read on while `LogPart.running` is true. The result is None if no log of `name` is
        known. Raises RuntimeUnavailableError, also if a kept log cannot be read."""
        if not is_replica_name(self._instance, name):
            return None

        def read(client: docker.APIClient) -> LogPart | None:
            container = find_replica(client, self._instance, name)
            return None if container is None else read_log_part(client, container, cursor, lines)

        part = await self._read_daemon.call(read)
        return part or await asyncio.to_thread(read_ended_part, self._ended_logs, name, cursor, lines)

    async def render_replica(self, replica: SeenReplica, definition: Definition, image: str | None) -> Rendered | None:
        """Return what a running replica would be started with now; `image_id` is None if the image is missing. None:
        the definition yields no command line, or a claimed GPU cannot be read. `image` None: the backend's default
        image. Raises RuntimeUnavailableError."""
        try:
            gpus = describe_claims(replica.claims, await self._claimed_gpus(replica.claims))
            launch, _ = await self._render_launch(replica.id.model, replica.id.index, definition, image, gpus)
        except (*RENDER_ERRORS, AssertionError, OSError, StartError):
            return None
        image_name = launch.image
        return Rendered(
            launch.argv, image_name and await self._read_daemon.call(lambda client: image_id(client, image_name))
        )

    async def read_gpus(self) -> tuple[Gpu, ...] | None:
        """Return the host's GPUs, read by NVIDIA's library or, if the library finds none and this controller runs in a
        container, by a probe container, which this call may start. Their processes name their replicas. Empty: there
        are none. None: unknown, since they cannot be read now. Raises RuntimeUnavailableError if the daemon does not
        answer or refuses."""
        return await self._owners.name_owners(await self._read_host_gpus())

    async def _read_host_gpus(self) -> tuple[Gpu, ...] | None:
        surroundings = await self.get_surroundings()
        gpus = await asyncio.to_thread(self._nvml.read_gpus)
        self._uses_probe = gpus == () and surroundings.container_id is not None
        return await self._probe.read_gpus() if self._uses_probe else gpus

    async def _claimed_gpus(self, claims: Mapping[str, int]) -> tuple[Gpu, ...]:
        if not claims.keys() - {HOST}:
            return ()
        gpus = await self._read_host_gpus()
        return find_claimed_gpus(claims, gpus, self.get_gpu_error(), self.list_unread_gpus())

    async def _processes(self) -> dict[str, builtins.list[int]]:
        def look(client: docker.APIClient) -> dict[str, builtins.list[int]]:
            containers = [each for each in own_containers(client, self._instance) if _is_replica(each, self._instance)]
            running_containers = (each for each in containers if phase_of(each) is Phase.RUNNING)
            return {str(each["Name"]).removeprefix("/"): pids_of(client, each["Id"]) for each in running_containers}

        return await self._read_daemon.call(look)

    async def read_host_mib(self, name: str) -> int | None:
        """Return the MiB of main memory that a running replica holds, including mapped model files. None if no such
        replica runs, or the daemon does not report it. Raises RuntimeUnavailableError."""

        def look(client: docker.APIClient) -> int | None:
            container = find_replica(client, self._instance, name)
            return None if container is None else container_host_mib(client, container["Id"])

        return await self._read_daemon.call(look)

    def get_gpu_error(self) -> str | None:
        """Return why the last `read_gpus` found no GPU or failed, in words; None: it found GPUs or was never called."""
        return self._probe.reason if self._uses_probe else self._nvml.reason

    def get_gpu_driver(self) -> GpuDriver | None:
        """Return the NVIDIA driver that the last `read_gpus` found; None: it found none, or was never called."""
        return self._probe.driver if self._uses_probe else self._nvml.driver

    def list_unread_gpus(self) -> tuple[UnreadGpu, ...]:
        """Return the GPUs that the last `read_gpus` left out because they cannot be read, each with the reason."""
        return self._probe.unread_gpus if self._uses_probe else self._nvml.unread_gpus

    async def watch_events(self) -> AsyncIterator[None]:
        """Yield whenever a replica's container may have changed, and when the connection to the daemon breaks or is
        made, until `close`. Events count from the first step of the iteration on. A lost connection raises nothing."""
        watch = EventWatch(self._write_daemon.connect, [*own_filter(self._instance), f"{ROLE}={REPLICA_ROLE}"])
        self._watches.add(watch)
        try:
            async for event in watch.watch_wakeups():
                yield event
        finally:
            await watch.close()
            self._watches.discard(watch)

    # Before a start

    async def check_preflight(
        self, model: str, definition: Definition, image: str | None, host: str = ""
    ) -> PreflightResult:
        """Check whether a replica could be started. Starts and pulls nothing.

        Its files and its image must exist, the definition must render to a command line, and, with GPUs, the image
        must set no variables of the dynamic loader and suit the driver that the last `read_gpus` found. The result
        names `missing_image` if only the image is missing and a pull may fetch it. A failed check does not raise.
        Raises RuntimeUnavailableError if the daemon does not answer.
        """
        image = image or get_engine(definition).resolve_image(definition, self._images)
        error = await asyncio.to_thread(self._find_problem, model, definition)
        if error is None and image is None:
            error = f"no container image is known for {model}: set its `image`"
        if error is not None or image is None:
            return PreflightResult(False, time.time(), error)
        try:
            image_env = await self._read_daemon.call(lambda client: image_environment(client, image))
        except DaemonRefusedError as refused_error:
            problem_of_image = start_error(refused_error.message, image)
            return PreflightResult(False, time.time(), str(problem_of_image), plain=problem_of_image.plain)
        if image_env is None and is_built_here(image):
            return PreflightResult(False, time.time(), f"image {image} is missing: `{build_command(image)}` builds it")
        if image_env is None:
            return PreflightResult(False, time.time(), f"image {image} is missing", missing_image=image)
        problem = None
        if definition.gpu_count:
            problem = find_loader_problem(image, image_env, definition.env) or find_driver_problem(
                image, image_env, definition.env, self.get_gpu_driver()
            )
        return PreflightResult(problem is None, time.time(), problem)

    def _find_problem(self, model: str, definition: Definition) -> str | None:
        engine = get_engine(definition)
        try:
            mounts, checks = self._mounts(), engine.list_files(definition)
            if problem := check_model(self._roots, engine, definition) or find_broken_link(self._roots, checks, mounts):
                return problem
            engine.render_command(
                definition, render_context(model, UserIdentity(UNPRIVILEGED, UNPRIVILEGED), self._images)
            )
        except RENDER_ERRORS as error:
            return str(no_command_error(model, error))
        return None

    async def pull_image(self, image: str, host: str = "") -> None:
        """Pull an image, without a time limit. Raises StartError with the registry's own reason,
        RuntimeUnavailableError if the daemon does not answer. If the call is cancelled or the runtime is closed, the
        pull ends at its next progress message; after `close`, this call may return without an error although the image
        is missing."""
        stop_event = threading.Event()
        self._pull_stops.add(stop_event)
        try:
            await copy_detached(
                lambda: self._write_daemon.run(lambda client: pull_image(client, image, stop_event)), f"pull {image}"
            )
        finally:
            stop_event.set()
            self._pull_stops.discard(stop_event)

    # Starting and ending

    async def start_replica(self, request: StartRequest) -> None:
        """Start a replica, and return once its container runs. One whose container was only created is started; nothing
        happens if it was started before. Creates the network of engines if needed.

        Raises StartError if the definition yields no command line (permanent), if the image, the network or a claimed
        GPU is missing, if a path of the model cannot be looked at, or if the daemon refuses; no container is left then.
        Raises RuntimeUnavailableError if the daemon does not answer: the container may start yet, as if cancelled.
        """
        surroundings = await self.get_surroundings()
        gpus = await self._claimed_gpus(request.claims)
        claims = describe_claims(request.claims, gpus)
        try:
            models = await asyncio.to_thread(self._present_models, surroundings)
            launch, identity = await self._render_launch(
                request.served_name, request.id.index, request.definition, request.image, claims
            )
        except RENDER_ERRORS as error:
            raise no_command_error(request.served_name, error) from error
        except OSError as error:
            plain = f"{request.served_name} cannot be started"
            raise StartError(f"{plain}: {error}", plain=plain) from error
        if launch.image is None:
            raise StartError(f"no container image is known for {request.served_name}: set its `image`", permanent=True)
        gpu_env = visible_gpus(gpus) if gpus and self._is_wsl2 else {}
        host = HostContext(self._instance, self._network, surroundings.publishes_ports, models, self._log_mib)
        config = container_config(request, launch, identity, host, time.time(), gpu_env)

        # One at a time, since the daemon would create two networks of one name (see `ensure_networks`).
        async with self._network_lock:
            further_network = await self._write_daemon.call(
                lambda client: ensure_networks(client, host, has_egress=launch.has_egress)
            )
        await self._write_daemon.call(
            lambda client: start_replica(
                client, self._instance, request.name, config, launch.folders, launch.files, further_network
            )
        )

    async def _render_launch(
        self, model: str, index: int, definition: Definition, image: str | None, gpus: tuple[ClaimedGpu, ...]
    ) -> tuple[Launch, UserIdentity]:
        engine = get_engine(definition)
        paths = engine.list_paths(definition)
        identity = choose_identity(await asyncio.to_thread(entries_to_read, self._roots, paths))
        model_paths = await asyncio.to_thread(lambda: find_engine_paths(self._roots, paths, self._mounts()))
        context = render_context(model, identity, self._images, gpus, model_paths, index)
        launch = engine.render_command(definition, context)
        return replace(launch, image=image or launch.image), identity

    def _mounts(self) -> Mounts:
        return mount_roots(self._roots, models_targets(len(self._roots.folders)))

    def _present_models(self, surroundings: Surroundings) -> list[Mapping[str, Any] | None]:
        """Return the mounts of the models folders, with None for folders that are missing. So a missing disk does not
        prevent starts of models on other disks. The first folder is always included."""
        folders = zip(self._roots.folders, surroundings.models, strict=True)
        return [mount if folder == self._roots.first or folder.is_dir() else None for folder, mount in folders]

    async def stop_replica(self, name: str, grace_s: float) -> None:
        """End a replica and remove its container, with which its whole process tree ends. The container gets its
        image's stop signal, SIGKILL after `grace_s` seconds. The end of its log is kept. Does nothing if there is no
        such replica. Raises RuntimeUnavailableError if the container does not end, or if the daemon refuses."""
        container = await self._find(name)
        if container is None:
            return
        if phase_of(container) is Phase.RUNNING:
            await stop_container(self._read_daemon, container, grace_s)
        await self._forget(name, str(container["Id"]))

    async def remove_replica(self, name: str) -> None:
        """Remove the container of a replica that has ended or was never started; the end of its log is kept. One that
        runs is left as it is, with a warning in the log; nothing is raised. Does nothing if there is no such
        replica. Raises RuntimeUnavailableError if the daemon does not answer or refuses."""
        container = await self._find(name)
        if container is None:
            return
        if phase_of(container) is Phase.RUNNING:
            log.warning("%s runs and is not removed: only a stop ends it", name)
            return
        await self._forget(name, str(container["Id"]))

    async def _find(self, name: str) -> Inspected | None:
        return await self._read_daemon.call(lambda client: find_replica(client, self._instance, name))

    async def _forget(self, name: str, container_id: str) -> None:
        data = await self._read_daemon.call(lambda client: read_log(client, container_id))
        await asyncio.to_thread(self._ended_logs.save_log, name, data)
        await self._write_daemon.call(lambda client: remove_container(client, container_id))

    async def close(self) -> None:
        """Release connections, end `watch_events` and pulls, and remove the GPU probe and an unused network. Engines go
        on running. If the daemon does not answer within 5 s (`CLOSE_S`), probe and network stay; nothing is raised."""
        for stop_event in tuple(self._pull_stops):
            stop_event.set()
        for watch in tuple(self._watches):
            await watch.close()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._probe.close()
                await self._read_daemon.call(lambda client: remove_networks(client, self._network, self._instance))
        except (RuntimeUnavailableError, TimeoutError) as error:
            log.debug("left behind on close: %s", error)
        self._nvml.close()
        self._read_daemon.close()
        self._write_daemon.close()


def _is_replica(container: Inspected, instance: str) -> bool:
    return is_own(labels_of(container), instance, REPLICA_ROLE)


def entries_to_read(roots: ModelRoots, paths: Iterable[str]) -> list[FileEntry]:
    """Return all that must be readable to load these model paths: the files, all below them, and the parent folders.
    The files come before their parent folders, so that `choose_identity` prefers their owner. Files that do not exist
    or cannot be looked at are left out; the preflight reports them. Of a model's folder, at most 10,000 files are
    looked at. Blocks."""
    root_folders = roots.resolve().folders
    model_entries: dict[Path, FileEntry] = {}
    folder_entries: dict[Path, FileEntry] = {}
    for path in paths:
        try:
            declared = locate_path(roots, path).path
            target = declared.resolve()
        except (ArtifactError, OSError, RuntimeError):
            continue
        files = [target, *islice(_below(target), _LOOKED_AT)]
        for each in files:
            _add_entry(each, model_entries)
        # To follow a link, a process must be able to enter the folders on both sides of it.
        ends = [Path(os.path.realpath(each)) for each in files if each.is_symlink()]
        folders = (folder for end in (target, declared, *ends) for folder in end.parents)
        for folder in dict.fromkeys(folders):
            if any(folder.is_relative_to(root) for root in root_folders):
                _add_entry(folder, folder_entries)
    if not folder_entries:
        _add_entry(root_folders[0], folder_entries)
    return [*model_entries.values(), *folder_entries.values()]


def _below(target: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(target):
        for name in (*folders, *files):
            yield Path(folder, name)


def _add_entry(path: Path, entries: dict[Path, FileEntry]) -> None:
    try:
        status = path.stat()
    except OSError:
        return
    entries[path] = FileEntry(status.st_uid, status.st_gid, status.st_mode)
