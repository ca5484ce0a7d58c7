"""Facts of a host and an installation, read for `roundhouse doctor`."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import re
import shutil
import stat
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import docker
import psutil

from cli.admin_client import ask_admin
from cli.doctor_checks import (
    ClockFacts,
    DesiredFacts,
    DiskFacts,
    DockerFacts,
    FolderFacts,
    GpuFacts,
    HostFacts,
    MemoryFacts,
    ModelFacts,
    PortFacts,
    RelayFacts,
)
from cli.options import own_gateway_url
from cli.output import CommandError
from cli.up.supervisor import listen_at
from common.listening import is_loopback
from common.settings import KNOWN_VARIABLES, PREFIX
from controller.desired.differences import list_setting_changes
from controller.runtimes.base import RuntimeGoneError, RuntimeUnavailableError
from controller.runtimes.docker.client import Daemon
from controller.runtimes.docker.containers import build_command, image_id, is_built_here
from controller.runtimes.nvml import NvmlReader

if TYPE_CHECKING:
    from contract.desired import Definition
    from controller.settings import ControllerSettings


GPU_TIMEOUT_S: Final = 10.0
"""Seconds that the driver, and each program that is asked, may take. With a lost GPU the driver may hang for ever."""
PCI_DEVICES: Final = Path("/sys/bus/pci/devices")
REPLACED: Final[Mapping[str, str]] = {"nvidia-docker-plugin": "nvidia-docker", "nvidia-docker": "nvidia-docker2"}
"""Program on PATH to the package that brought it. The NVIDIA Container Toolkit has replaced these packages."""

_NVIDIA: Final = "0x10de"
_DISPLAY_CLASS: Final = "0x03"
_VERSION_PROGRAMS: Final = (("nvidia-ctk", "--version"), ("nvidia-container-cli", "--version"))
_VERSION: Final = re.compile(r"version:?\s+v?(\d+\.\d+\.\d+\S*)", re.IGNORECASE)


def read_gpus(*, pci_devices: Path = PCI_DEVICES) -> GpuFacts:
    """Read the PCI bus, ask the driver, and ask the toolkit for its version. Blocks, up to a few times 10 s
    (`GPU_TIMEOUT_S`); raises nothing. A driver that does not answer leaves a thread behind."""
    reader = NvmlReader(limit_s=GPU_TIMEOUT_S)
    gpus = reader.read_gpus()
    reader.close()
    return GpuFacts(
        on_bus=count_on_bus(pci_devices),
        readable=len(gpus or ()),
        gpus=gpus or (),
        problem=reader.reason,
        unread=tuple(gpu.description for gpu in reader.unread_gpus),
        driver_version=reader.driver.version if reader.driver is not None else None,
        toolkit_version=read_toolkit_version(),
        replaced_packages=tuple(sorted(package for program, package in REPLACED.items() if shutil.which(program))),
    )


def count_on_bus(pci_devices: Path) -> int:
    """Return how many display controllers of NVIDIA's the kernel lists in `pci_devices`, the folder of PCI devices in
    sysfs; 0 where it lists none or does not exist."""
    return sum(
        _read_word(device / "vendor") == _NVIDIA and _read_word(device / "class").startswith(_DISPLAY_CLASS)
        for device in (pci_devices.iterdir() if pci_devices.is_dir() else ())
    )


def read_toolkit_version() -> str | None:
    """Return the version that the toolkit's program on PATH prints. None: there is no such program, or it prints none.
    Blocks, up to 10 s (`GPU_TIMEOUT_S`) for each of two programs."""
    for command in _VERSION_PROGRAMS:
        if match := _VERSION.search(_run(command)):
            return match[1]
    return None


def _read_word(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _run(command: Sequence[str]) -> str:
    program = shutil.which(command[0])
    if program is None:
        return ""
    try:
        done = subprocess.run(
            [program, *command[1:]],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=GPU_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


DOCKER_TIMEOUT_S: Final = 5.0
"""Seconds that one request to the daemon may take."""

_FRACTION: Final = re.compile(r"\.\d+")


def read_docker(
    runtime: Literal["process", "docker", "auto"], images: Collection[str], *, url: str | None = None, now: float
) -> DockerFacts:
    """Ask the daemon for its version, its support of GPUs, its clock, and which of `images` it lacks.

    Blocks. `url` None: DOCKER_HOST, else Docker's socket. `now` is Unix time in seconds. Where `runtime` is `process`,
    nothing is asked. Errors of the daemon are in the result; nothing is raised.
    """
    daemon = Daemon(url, timeout_s=DOCKER_TIMEOUT_S, threads=1)
    facts = DockerFacts(daemon.url, runtime)
    if runtime == "process":
        return replace(facts, problem="engines run as processes")
    with closing(daemon):
        try:
            facts = replace(facts, **daemon.run(lambda client: _describe_engine(client, now)))
        except RuntimeGoneError as error:
            return replace(facts, problem=str(error), is_absent=True)
        except RuntimeUnavailableError as error:
            return replace(facts, problem=str(error))
        try:
            return replace(facts, missing_images=daemon.run(lambda client: _find_missing(client, images)))
        except RuntimeUnavailableError as error:
            return replace(facts, unknown_images=str(error))


def _describe_engine(client: docker.APIClient, now: float) -> dict[str, Any]:
    info = client.info()
    runtimes = info.get("Runtimes") or {}
    devices = info.get("DiscoveredDevices") or ()
    return {
        "version": str(info.get("ServerVersion", "")),
        "has_gpu_support": "nvidia" in runtimes
        or any(str(device.get("ID", "")).startswith("nvidia.com/gpu") for device in devices),
        "daemon_ahead_s": _seconds_ahead(str(info.get("SystemTime", "")), now),
    }


def _seconds_ahead(system_time: str, now: float) -> float | None:
    """Return by how many seconds the time that the daemon reported (RFC 3339) is later than `now`; None: it reported
    none."""
    # Python 3.11 accepts 3 or 6 digits of a second's fraction; Docker writes up to 9.
    try:
        return datetime.fromisoformat(_FRACTION.sub("", system_time)).timestamp() - now
    except ValueError:
        return None


def _find_missing(client: docker.APIClient, images: Collection[str]) -> tuple[tuple[str, str], ...]:
    return tuple((image, _advise(image)) for image in sorted(set(images)) if image_id(client, image) is None)


def _advise(image: str) -> str:
    return f"`{build_command(image)}`" if is_built_here(image) else f"`docker pull {image}`; a start pulls it, too"


TRUE_WORDS: Final = ("1", "true", "yes", "on", "t", "y")
"""Values of a variable that pydantic reads as true."""
ANSWER_S: Final = 2.0
"""Seconds that a gateway has to say that it is one."""
MAX_FILES: Final = 1000
"""Entries of the state folder that are looked at."""

_MIB: Final = 2**20
_TIME_ERROR: Final = 5
"""What adjtimex(2) returns while the clock is not synchronised (TIME_ERROR of sys/timex.h)."""
_TIMEX_BYTES: Final = 512
"""More than `struct timex` has on any architecture."""


def read_facts(settings: ControllerSettings, environ: Mapping[str, str]) -> HostFacts:
    """Read all facts. Blocks for seconds where Docker or the driver does not answer. Changes nothing on the host. No
    event loop may run in this thread.

    `settings`: of the installation to judge. `environ`: the environment of its programs. Raises nothing for what is
    wrong with the host.
    """
    folders = _list_folders(settings)
    desired, images = _read_desired(settings, folders[0])
    changes = list_setting_changes([name for name in environ if name.startswith(PREFIX)], KNOWN_VARIABLES)
    return HostFacts(
        docker=read_docker(_read_runtime(settings), images, now=time.time()),
        gpus=read_gpus(),
        disks=tuple(disk for disk in map(_read_disk, folders) if disk is not None),
        folders=folders,
        ports=_read_ports(settings, environ),
        desired=desired,
        clock=_read_clock(settings.state, time.time()),
        memory=_read_memory(settings),
        relay=_read_relay(settings.state.absolute()),
        setting_problems=tuple((change.subject, change.message) for change in changes),
    )


def _read_relay(state: Path) -> RelayFacts:
    """Ask this host's relay whether it is there, as the head does."""
    from common.host_tls import HostContexts
    from controller.runtimes.cluster.relay_keeper import check_relay, read_place, relay_folder

    is_insecure = False
    with suppress(OSError, ValueError, AttributeError):  # of a head
        is_insecure = bool(json.loads((relay_folder(state) / "join.json").read_bytes()).get("is_insecure"))
    place = read_place(state)
    if place is None:
        return RelayFacts(is_insecure=is_insecure)
    address, tls = place
    problem = asyncio.run(check_relay(address, tls, HostContexts()))
    return RelayFacts(address, None if problem is None else problem.words, is_insecure or tls is None)


def _read_runtime(settings: ControllerSettings) -> Literal["process", "docker", "auto"]:
    """Return the runtime that the settings name; for `auto` the running controller's, where one answers."""
    if settings.runtime == "auto":
        with suppress(CommandError):
            used = ask_admin(settings.controller_url, lambda client: client.get_status()).runtime
            return "process" if used == "process" else "docker" if used == "docker" else "auto"
    return settings.runtime


def _list_folders(settings: ControllerSettings) -> tuple[FolderFacts, ...]:
    """Return the folder of the desired-state files, the state folder, and the models folders, in this order."""
    return (
        read_folder_facts("desired-state folder", settings.desired, f"{PREFIX}DESIRED", is_written=False),
        read_folder_facts("state folder", settings.state, f"{PREFIX}STATE", is_written=True),
        *(
            read_folder_facts("models folder", folder, f"{PREFIX}MODELS", is_written=False)
            for folder in settings.models.absolute().folders
        ),
    )


def read_folder_facts(purpose: str, path: Path, variable: str, *, is_written: bool) -> FolderFacts:
    """Return how this user, with the effective rights of this process, may use a folder. Makes nothing. `is_written`:
    whether Roundhouse writes to it. `purpose` (what the folder is for) and `variable` (that names the folder) are put
    into the result."""
    path = path.absolute()
    kind: Literal["folder", "missing", "other", "unreachable"] = "folder"
    mode = 0
    try:
        status = path.stat()
    except FileNotFoundError:
        kind = "missing"
    except PermissionError:
        kind = "unreachable"
    except OSError:
        kind = "other"
    else:
        kind, mode = ("folder" if stat.S_ISDIR(status.st_mode) else "other"), stat.S_IMODE(status.st_mode)
    written_folder = path if kind == "folder" else _nearest_folder(path)
    return FolderFacts(
        purpose,
        str(path),
        variable,
        is_written,
        kind,
        is_readable=kind == "folder" and _may(path, os.R_OK | os.X_OK),
        is_writable=_may(written_folder, os.W_OK | os.X_OK),
        foreign_file=_find_foreign_file(path) if is_written and kind == "folder" else None,
        mode=mode,
    )


def _may(path: Path, rights: int) -> bool:
    return os.access(path, rights, effective_ids=True)


def _nearest_folder(path: Path) -> Path:
    return next((parent for parent in path.parents if parent.is_dir()), Path("/"))


def _find_foreign_file(folder: Path) -> str | None:
    """Return the name of a file directly in the folder that this user may not write; None: there is none."""
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False))
    except OSError:
        return None
    return next((name for name in names[:MAX_FILES] if not _may(folder / name, os.W_OK)), None)


def _read_disk(folder: FolderFacts) -> DiskFacts | None:
    """Return the room on a folder's file system. None: Roundhouse does not write there, or it cannot be asked."""
    if not folder.is_written:
        return None
    path = Path(folder.path)
    try:
        place = path if path.is_dir() else _nearest_folder(path)
        numbers = os.statvfs(place)
        free_mib = shutil.disk_usage(place).free // _MIB
    except OSError:
        return None
    return DiskFacts(folder.purpose, folder.path, free_mib, numbers.f_favail if numbers.f_files else None)


def _read_ports(settings: ControllerSettings, environ: Mapping[str, str]) -> PortFacts:
    problem: str | None = None
    if settings.port:
        try:
            for listener in listen_at(settings.gateway_hosts, settings.port):
                listener.close()
        except CommandError as error:
            problem = None if asyncio.run(_is_roundhouse(own_gateway_url(settings))) else str(error)
    return PortFacts(
        settings.gateway_hosts,
        settings.port,
        problem,
        is_exposed=not all(map(is_loopback, settings.gateway_hosts)),
        is_open=environ.get(f"{PREFIX}OPEN", "").lower() in TRUE_WORDS,
    )


async def _is_roundhouse(url: str) -> bool:
    """Return whether a gateway of Roundhouse answers at the address, also if its metrics have a key."""
    import aiohttp  # 150 ms that only a taken port costs

    with suppress(aiohttp.ClientError, TimeoutError, OSError, ValueError):
        timeout = aiohttp.ClientTimeout(total=ANSWER_S)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{url}/health", ssl=False) as response,
        ):
            answer = await response.json()
            if not isinstance(answer, dict):
                return False
            error = answer.get("error")
            is_refused = isinstance(error, dict) and error.get("code") == "invalid_api_key" and "next_steps" in error
            return answer.get("service") == "roundhouse" or is_refused
    return False


def _read_desired(settings: ControllerSettings, folder: FolderFacts) -> tuple[DesiredFacts, list[str]]:
    """Return the declared models, MCP servers with a command, and keys, and the images that they need."""
    from controller.config.parse import list_places, parse_documents, read_documents, read_folder
    from controller.config.runtime_declarations import declare_replicas, define_replicas
    from controller.desired.file_source import place_models
    from controller.engines import get_engine
    from controller.memory_estimator import predict_declared

    if folder.kind != "folder" or not folder.is_readable:
        return DesiredFacts(str(settings.desired)), []
    roots, snapshot = settings.models.absolute(), read_folder(settings.desired)
    documents = read_documents(snapshot)
    parsed = parse_documents(snapshot, documents, roots)
    definitions = {**parsed.definitions, **define_replicas(declare_replicas(parsed.tools.declared_servers))}
    placed, _ = place_models(roots.first, parsed.definitions, parsed.declared_models)
    wanted, requirements = predict_declared({**parsed.definitions, **placed}, parsed.declared_models, roots)
    places = list_places(documents.values())
    models = tuple(
        replace(
            _read_model(settings, name, placed.get(name, each), has_files=name in placed),
            wanted=wanted.get(name),
            requirement=requirements.get(name),
            place=places.get(f"models.{name}", ""),
        )
        for name, each in sorted(definitions.items())
    )
    images = (get_engine(each).resolve_image(each, settings.images) for each in definitions.values())
    facts = DesiredFacts(str(settings.desired), tuple(map(str, parsed.problems)), models, len(parsed.keys))
    return facts, [image for image in images if image is not None]


def _read_model(settings: ControllerSettings, name: str, definition: Definition, *, has_files: bool) -> ModelFacts:
    """`has_files` False: the model's files are downloaded before it starts, so that nothing of them is looked at."""
    from controller.engines import get_engine
    from controller.redaction import mask_text
    from controller.runtimes.model_files import check_model
    from controller.runtimes.process.launch import HostCommands, find_executables

    engine = get_engine(definition)
    roots = settings.models.absolute()
    problem = check_model(roots, engine, definition) if has_files else None
    commands = HostCommands(roots, settings.state.absolute() / "cache", "127.0.0.1", find_executables())
    lacks = commands.check_command(definition, name) if engine.runs and problem is None else None
    return ModelFacts(
        name,
        None if problem is None else mask_text(problem),
        None if lacks is None else mask_text(lacks),
        is_enabled=definition.enabled and not definition.autoload,
        names_gpus=engine.runs and bool(definition.gpu_count),
        memory_mib=None if definition.memory_mib is None else definition.memory_mib * definition.replicas,
    )


def _read_clock(state: Path, now: float) -> ClockFacts:
    """`now` is Unix time in seconds."""
    times: dict[str, float] = {}
    with suppress(OSError), os.scandir(state) as entries:
        for entry in list(entries)[:MAX_FILES]:
            with suppress(OSError):
                times[str(state / entry.name)] = entry.stat(follow_symlinks=False).st_mtime
    newest = max(times, key=times.__getitem__, default=None)
    ahead_s = max(0.0, times[newest] - now) if newest is not None else 0.0
    return ClockFacts(_is_clock_synchronised(), newest, ahead_s)


def _is_clock_synchronised() -> bool | None:
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))  # no modes: it only reads
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _TIME_ERROR


def _read_memory(settings: ControllerSettings) -> MemoryFacts:
    memory = psutil.virtual_memory()
    return MemoryFacts(memory.total // _MIB, memory.available // _MIB, settings.engines_memory_mib)
