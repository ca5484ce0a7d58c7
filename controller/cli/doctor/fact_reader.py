"""Reads the facts for `roundhouse doctor`: the one place of the command that looks at the host."""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import psutil

from common.listening import is_loopback
from common.setting_names import KNOWN_VARIABLES, PREFIX
from controller.cli.doctor.docker_facts import read_docker
from controller.cli.doctor.facts import (
    ClockFacts,
    DesiredFacts,
    DiskFacts,
    FolderFacts,
    HostFacts,
    MemoryFacts,
    ModelFacts,
    PortFacts,
)
from controller.cli.doctor.gpu_facts import read_gpus
from controller.cli.exit_codes import CommandError
from controller.cli.settings import own_gateway_url
from controller.cli.up.port_check import check_port_free
from controller.desired.upgrade_check import list_setting_changes

if TYPE_CHECKING:
    from controller.schema.desired import Definition
    from controller.settings import ControllerSettings

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
        docker=read_docker(settings.runtime, images, now=time.time()),
        gpus=read_gpus(),
        disks=tuple(disk for disk in map(_read_disk, folders) if disk is not None),
        folders=folders,
        ports=_read_ports(settings, environ),
        desired=desired,
        clock=_read_clock(settings.state, time.time()),
        memory=_read_memory(settings),
        setting_problems=tuple((change.subject, change.message) for change in changes),
    )


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
            check_port_free(settings.hosts, settings.port)
        except CommandError as error:
            problem = None if asyncio.run(_is_roundhouse(own_gateway_url(settings))) else str(error)
    return PortFacts(
        settings.hosts,
        settings.port,
        problem,
        is_exposed=not all(map(is_loopback, settings.hosts)),
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
    from controller.config.mcp_replicas import declare_replicas, define_replicas
    from controller.config.parse import parse_folder
    from controller.config.read import read_folder
    from controller.desired.placed_sources import place_models
    from controller.engines import get_engine

    if folder.kind != "folder" or not folder.is_readable:
        return DesiredFacts(str(settings.desired)), []
    parsed = parse_folder(read_folder(settings.desired), settings.models.absolute())
    definitions = {**parsed.definitions, **define_replicas(declare_replicas(parsed.tools.declared_servers))}
    placed, _ = place_models(settings.models.absolute().first, parsed.definitions, parsed.declared_models)
    models = tuple(
        _read_model(settings, name, placed.get(name, each), has_files=name in placed)
        for name, each in sorted(definitions.items())
    )
    images = (get_engine(each).resolve_image(each, settings.images) for each in definitions.values())
    facts = DesiredFacts(str(settings.desired), tuple(map(str, parsed.problems)), models, len(parsed.keys))
    return facts, [image for image in images if image is not None]


def _read_model(settings: ControllerSettings, name: str, definition: Definition, *, has_files: bool) -> ModelFacts:
    """`has_files` False: the model's files are downloaded before it starts, so that nothing of them is looked at."""
    from controller.engines import get_engine
    from controller.redaction.patterns import mask_text
    from controller.runtimes.model_files import check_model
    from controller.runtimes.process.host_commands import HostCommands, find_executables

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
