"""`roundhouse upgrade` and `version`."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.options import ControllerUrl, Desired, Json, Models, State, read_settings
from cli.output import CommandError, ExitCode, print_json, print_line
from common.sqlite_files import open_existing
from controller import __version__

if TYPE_CHECKING:
    from contract.status import ControllerStatus
    from controller.desired.differences import RunningReplica, UpgradeChange
    from controller.settings import ControllerSettings
    from controller.state import DesiredModel


@dataclass(frozen=True, slots=True)
class RunningController:
    """Environment and working folder of a running controller, as its process was started."""

    environment: Mapping[str, str]
    folder: Path
    """Working folder, from which relative paths of the controller's settings start."""


def version(as_json: Json = False) -> int:
    """Print the version."""
    if as_json:
        print_json({"version": __version__})
    else:
        print_line(f"roundhouse {__version__}")
    return ExitCode.DONE


BUSY_S = 0.5
"""Seconds to wait for a database that another program has locked."""


def upgrade(
    check: Annotated[
        bool, typer.Option("--check", help="Show what would change, without installing or changing anything.")
    ] = False,
    desired: Desired = None,
    state: State = None,
    models: Models = None,
    controller: ControllerUrl = None,
    as_json: Json = False,
) -> int:
    """Show what this version would change on an installation.

    An installation that another version runs: run the new version's `roundhouse` with the installation's --state. The
    command asks the running controller, and reads the controller's environment, the files and the state folder. Exit
    code 0: nothing would change. 1: this version would not work with the installation as it is. 2: something would
    change.
    """
    if not check:
        raise CommandError("say `upgrade --check`: a new version is installed by git or by its images", ExitCode.USAGE)

    from common.settings import KNOWN_VARIABLES, PREFIX
    from controller.desired.differences import list_engine_changes, list_schema_changes, list_setting_changes

    options = {"desired": desired, "state": state, "models": models}
    own_settings = read_settings(**options)
    running = find_controller(own_settings.state)
    settings = _settings_of(running, options) if running is not None else own_settings
    status = _ask_status(controller or settings.controller_url)
    replicas = _running_replicas(status, settings.state)
    runtime = status.runtime if status is not None else "process" if replicas else settings.runtime
    desired_models, changes = _resolve_models(settings, runtime)
    changes += list_engine_changes(desired_models, replicas or ())
    variables = {*os.environ, *(running.environment if running is not None else ())}
    roundhouse_variables = {name for name in variables if name.startswith(PREFIX)}
    changes += list_setting_changes(roundhouse_variables, KNOWN_VARIABLES)
    changes += list_schema_changes(*_schema_versions(settings.state))
    unknown = [] if replicas is not None else ["which engines run: no controller answers, and none runs as a process"]
    _show(status.version if status is not None else None, changes, unknown, as_json=as_json)
    if any(change.is_obstacle for change in changes):
        return ExitCode.FAILED
    return ExitCode.PENDING if changes else ExitCode.DONE


def _settings_of(running: RunningController, options: Mapping[str, Path | None]) -> ControllerSettings:
    """Return the settings by the options and this environment; what neither sets is as the running controller has
    it."""
    from common.settings import PREFIX
    from controller.artifacts.model_roots import split_folders
    from controller.settings import ControllerSettings

    values: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    for name, field in ControllerSettings.model_fields.items():
        variable = f"{PREFIX}{name.upper()}"
        if name in values or os.environ.get(variable):
            continue
        if value := running.environment.get(variable):
            values[name] = value
        if name == "desired":
            values[name] = running.folder / Path(values.get(name, field.default))
        if name == "models":
            folders = split_folders(str(values.get(name, field.default))).folders
            values[name] = ",".join(str(running.folder / folder.expanduser()) for folder in folders)
    return read_settings(**values)


def _ask_status(url: str) -> ControllerStatus | None:
    """Return the status of the controller. None means that no controller answers."""
    from cli.admin_client import NoControllerError, ask_admin

    try:
        return ask_admin(url, lambda client: client.get_status())
    except NoControllerError:
        return None


def _running_replicas(status: ControllerStatus | None, state: Path) -> list[RunningReplica] | None:
    """Return the replicas that the controller reports, else those that run as processes. None means unknown."""
    from controller.desired.differences import RunningReplica

    if status is not None:
        return [
            RunningReplica(model.name, replica.spec_hash, replica.outdated)
            for model in status.models
            for replica in model.replicas
            if replica.phase != "ended"
        ]
    folder = state / "replicas"
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    records = [_read_json(path) for path in paths if not path.name.startswith(".")]
    live_records = [record for record in records if record.get("ended") is False]
    if not live_records:
        return None
    return [RunningReplica(str(record.get("model")), str(record.get("spec_hash"))) for record in live_records]


def _resolve_models(
    settings: ControllerSettings, runtime: str
) -> tuple[Mapping[str, DesiredModel], list[UpgradeChange]]:
    """Return the declared models as this version resolves them, with operators' statements, and problems of files and
    of declarations at run time."""
    from controller.config.debounce import settled_state
    from controller.config.parse import parse_folder, read_folder
    from controller.config.runtime_declarations import combine_declarations
    from controller.config.validate import list_sources
    from controller.desired.differences import UpgradeChange
    from controller.desired.file_source import find_placed_sources
    from controller.desired.resolve import DeclaredModel, Defaults, resolve_desired
    from controller.state_dir import MEMORY_NAME, StoredState

    roots = settings.models.absolute()
    parsed_folder = parse_folder(read_folder(settings.desired), roots)
    problems = [
        UpgradeChange("file", problem.file, f"{problem}", is_obstacle=True) for problem in parsed_folder.problems
    ]
    stored_state = StoredState()
    with suppress(OSError, ValueError):  # of another schema_version, which is told apart
        stored_state = StoredState.model_validate_json((settings.state / MEMORY_NAME).read_bytes())
    combined = combine_declarations(
        settled_state(parsed_folder),
        stored_state.declarations,
        roots,
        settings.trusted_declarations,
        stored_state.discovered,
    )
    problems += [UpgradeChange("file", problem.file, f"{problem}") for problem in combined.problems]
    definitions = combined.state.definitions
    declared_models = {
        name: DeclaredModel(definition, combined.state.declared_models[name], 0.0)
        for name, definition in definitions.items()
    }
    images = settings.images if runtime == "docker" else {}
    resolved = resolve_desired(
        declared_models,
        StoredState(overrides=stored_state.overrides, demand=stored_state.demand),
        Defaults(images),
        generation=0,
        sources=find_placed_sources(roots.first, list_sources(definitions.values())),
    )
    return resolved.models, problems


def _schema_versions(state: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Return two mappings by file of the state folder: the version that the file has, and the version that this
    Roundhouse writes."""
    from cli.backup.manifest import JOURNAL, RESPONSES, STATE_FILES
    from common.sqlite_files import RESPONSES_SCHEMA_VERSION
    from contract.status import SCHEMA_VERSION
    from controller.state_dir import EPOCH_NAME

    json_files = [*STATE_FILES, EPOCH_NAME]
    found_versions: dict[str, int | None] = {name: _json_version(state / name) for name in json_files}
    found_versions[JOURNAL] = _query_version(state / JOURNAL, "SELECT value FROM meta WHERE key = 'schema_version'")
    found_versions[RESPONSES] = _query_version(state / RESPONSES, "PRAGMA user_version")
    known_versions = {**dict.fromkeys([*json_files, JOURNAL], SCHEMA_VERSION), RESPONSES: RESPONSES_SCHEMA_VERSION}
    return {name: version for name, version in found_versions.items() if version}, known_versions


def _read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Empty where it cannot be read."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _json_version(path: Path) -> int | None:
    version = _read_json(path).get("schema_version")
    return version if isinstance(version, int) else None


def _query_version(path: Path, query: str) -> int | None:
    """Return the schema version of a database. None means that there is no such file, or that it cannot be read, for
    example because another program has locked it."""
    if not path.exists():
        return None
    try:
        with closing(open_existing(path, busy_s=BUSY_S)) as db:
            row = db.execute(query).fetchone()
    except sqlite3.Error:
        return None
    return int(row[0]) if row else None


def _show(running_version: str | None, changes: list[UpgradeChange], unknown: list[str], *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "version": __version__,
                "running_version": running_version,
                "changes": [asdict(change) for change in changes],
                "unknown": unknown,
            }
        )
        return
    running_words = f"{running_version} runs" if running_version is not None else "no controller answers"
    print_line(f"this is Roundhouse {__version__}; {running_words}")
    for change in changes:
        print_line(change.message if change.kind == "file" else f"{change.subject}: {change.message}")
    for words in unknown:
        print_line(f"not known: {words}")
    if not changes:
        print_line("nothing would change")


def find_controller(state: Path) -> RunningController | None:
    """Return the controller whose process id is in the lock file of the state folder.

    None means that no such process is visible: none runs, or it runs in a container or as another user. A process that
    does not have that lock file open does not count, so a reused process id misleads nobody. Raises nothing.
    """
    from controller.runtimes.process.groups import PROC
    from controller.state_dir import LOCK_NAME

    lock_path = state / LOCK_NAME
    try:
        process = PROC / str(int(lock_path.read_text()))
        if not _has_open(process, lock_path):
            return None
        content = (process / "environ").read_bytes().decode(errors="replace")
        folder = (process / "cwd").readlink()
    except (OSError, ValueError):
        return None
    pairs = (entry.partition("=") for entry in content.split("\0") if entry)
    return RunningController({name: value for name, _, value in pairs}, folder)


def _has_open(process: Path, path: Path) -> bool:
    file = path.stat()
    for descriptor in (process / "fd").iterdir():
        with suppress(OSError):  # it was closed meanwhile
            # Compare the name first: a stat of every open file could block on a lost file server.
            if descriptor.readlink().name == path.name and os.path.samestat(descriptor.stat(), file):
                return True
    return False
