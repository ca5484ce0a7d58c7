"""Installs and removes the systemd unit."""

from __future__ import annotations

import math
import os
import pwd
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from common.atomic_write import write_atomic
from controller.cli import stop_timeouts
from controller.cli.exit_codes import CommandError, ExitCode
from controller.cli.service.systemd import Systemd, lingers, require_systemd
from controller.cli.service.unit import ServiceUnit, UnitTextError, find_state, render_unit
from controller.cli.settings import read_settings

if TYPE_CHECKING:
    from controller.settings import ControllerSettings

SET_BY_UNIT: Final = ("DESIRED", "STATE", "MODELS", "RUNTIME", "HOST", "PORT")
"""Settings that the unit sets, without their prefix. All others go into the environment file."""
NOT_OF_A_SERVICE: Final = ("ROUNDHOUSE_KEY", "ROUNDHOUSE_CONTROLLER_URL")
"""Variables of the command line that a service does not use."""
CARRIED: Final = ("PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "HF_HOME", "HF_HUB_CACHE")
"""Variables by which this shell finds programs and libraries. Engines need them, and systemd does not set them."""
PROGRAM: Final = Path(sys.executable).with_name("roundhouse")
"""The program `roundhouse` of this Python environment."""


@dataclass(slots=True)
class Change:
    """What `install_service` or `remove_service` did, as lines for the operator. The caller prints them."""

    path: Path
    """The unit file."""
    done: list[str] = field(default_factory=list)
    """What was done."""
    notes: list[str] = field(default_factory=list)
    """Warnings for the operator."""
    next_lines: list[str] = field(default_factory=list)
    """Commands that the operator may type next."""


def install_service(
    name: str, *, is_system: bool, user: str | None, is_started: bool, options: Mapping[str, Any]
) -> Change:
    """Write the unit `name`, create its state folder, and with `is_started` start the unit now and with the machine;
    restart it if it runs and its text has changed. Return what was done.

    `user` is whom a system unit runs as; None only without `is_system`. `options` are settings from the command line;
    None takes the default. The text of a unit that is as it should be is not written again.

    Raises CommandError, before anything is written, where systemd does not run, an option is wrong, root is needed, the
    desired-state folder is missing, the user cannot run Roundhouse, or the unit is somebody else's or of another state
    folder; and later where a file cannot be written or `systemctl` fails.
    """
    require_systemd()
    _check_options(name, is_system, user)
    account = _find_account(user) if is_system else None
    settings = read_settings(**options, runtime="process")
    systemd = Systemd(is_system)
    unit = plan_unit(name, settings, systemd.environment_file(name), user if is_system else None, os.environ)
    try:
        text = render_unit(unit)
    except UnitTextError as error:
        raise CommandError(str(error), ExitCode.USAGE) from None
    change = Change(systemd.unit_folder / f"{name}.service")
    present = _read_unit(change.path)
    _check_replaceable(change.path, present, unit)
    if not settings.desired.is_dir():
        raise CommandError(f"there is no folder {unit.environment['ROUNDHOUSE_DESIRED']}; --desired names it")
    if account is not None:
        _check_can_run(account)
    _make_state_folder(unit.state, account)
    if present == text:
        change.done.append(f"{change.path} is as it should be")
    else:
        _write_unit(change.path, text)
        change.done.append(f"wrote {change.path}")
    systemd.reload()
    _start(systemd, change, name, is_started=is_started, is_changed=present != text)
    _add_notes(change, unit, systemd)
    return change


def remove_service(name: str, *, is_system: bool, is_stopped: bool) -> Change:
    """Remove the unit `name`, so that it does not start with the machine any more; with `is_stopped`, stop it first if
    it runs. Return what was done; a missing unit is no error.

    Models and state stay, and engines run on. Raises CommandError where the unit runs and `is_stopped` is False, was
    not written by Roundhouse, cannot be removed, or where systemd does not answer.
    """
    require_systemd()
    _check_options(name, is_system, None)
    systemd = Systemd(is_system)
    change = Change(systemd.unit_folder / f"{name}.service")
    present = _read_unit(change.path)
    if present is None:
        change.done.append(f"nothing to remove: there is no {change.path}")
        return change
    state = find_state(present)
    if state is None:
        raise CommandError(f"{change.path} was not written by `roundhouse service install` and stays")
    if systemd.is_active(f"{name}.service") and not is_stopped:
        raise CommandError(f"{name}.service runs; `--now` stops it before it is removed")
    systemd.disable(f"{name}.service")
    try:
        change.path.unlink(missing_ok=True)
    except OSError as error:
        raise CommandError(f"{change.path} cannot be removed: {error.strerror or error}") from None
    systemd.reload()
    change.done.append(f"removed {change.path}")
    change.next_lines.append(
        f"roundhouse down --state {shlex.quote(state)} --runtime process    # ends engines that still run"
    )
    return change


PROGRAM_FOLDERS: Final = ("common", "controller", "gateway", "retrieval", "transfers")
"""Folders of the programs that the unit runs, beside the worker's."""


def plan_unit(
    name: str, settings: ControllerSettings, environment_file: Path, user: str | None, environ: Mapping[str, str]
) -> ServiceUnit:
    """Return the unit for these settings, with the current folder as its working folder. Nothing is written.

    `user` None: a unit of the user's own manager. `environ`: where the variables in `CARRIED` (PATH and others by which
    programs and libraries are found) are taken from.
    """
    from controller.cli.up.run import program_specs

    absolute = {"desired": settings.desired.absolute(), "state": settings.state.absolute()}
    variables = program_specs(settings.model_copy(update=absolute), {})[0].env
    carried = {variable: environ[variable] for variable in CARRIED if environ.get(variable)}
    programs = (Path(sys.prefix), *(Path(__file__).parents[3] / each for each in PROGRAM_FOLDERS))
    return ServiceUnit(
        name=name,
        user=user,
        program=PROGRAM,
        folder=Path.cwd(),
        state=settings.state.absolute(),
        environment={f"ROUNDHOUSE_{each}": variables[f"ROUNDHOUSE_{each}"] for each in SET_BY_UNIT} | carried,
        environment_file=environment_file,
        read_only=(settings.desired.absolute(), *programs, Path(__file__).parents[3] / "worker"),
        stop_timeout_s=math.ceil(
            stop_timeouts.gateway_stop_timeout_s()
            + stop_timeouts.side_programs_stop_timeout_s()
            + stop_timeouts.controller_stop_timeout_s(settings)
            + stop_timeouts.MARGIN_S
        ),
    )


def left_out(environ: Mapping[str, str]) -> list[str]:
    """Return the names, sorted, of the `ROUNDHOUSE_` variables that are set and not empty in `environ` and that the
    unit does not set, though a service would read them."""
    held = {f"ROUNDHOUSE_{each}" for each in SET_BY_UNIT}
    return sorted(
        each
        for each, text in environ.items()
        if text and each.startswith("ROUNDHOUSE_") and each not in held and each not in NOT_OF_A_SERVICE
    )


def _check_options(name: str, is_system: bool, user: str | None) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise CommandError(f"--name {name}: letters, digits, - and _ are what a unit is named by", ExitCode.USAGE)
    if user is not None and not is_system:
        raise CommandError("--user goes with --system; without it the service is this user's own", ExitCode.USAGE)
    if is_system and os.geteuid() != 0:
        raise CommandError("a service of the machine takes root: run this with sudo, or leave --system out")


def _find_account(user: str | None) -> pwd.struct_passwd:
    if user is None:
        raise CommandError("--system needs --user NAME: whom controller, gateway and engines run as", ExitCode.USAGE)
    try:
        account = pwd.getpwnam(user)
    except KeyError:
        raise CommandError(
            f"there is no user {user}; `adduser --system --group --home /var/lib/{user} {user}` makes one",
            ExitCode.USAGE,
        ) from None
    if account.pw_uid == 0:
        raise CommandError("--user root: engines would be root, and models' files can be code; name another user")
    return account


def _check_can_run(account: pwd.struct_passwd) -> None:
    """Check that the user can start the program, which may lie in somebody's home folder. Raises CommandError."""
    try:
        done = subprocess.run(
            [PROGRAM, "version"],
            user=account.pw_uid,
            group=account.pw_gid,
            extra_groups=os.getgrouplist(account.pw_name, account.pw_gid),
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
        reason = next(iter(done.stderr.strip().splitlines()[-1:]), "") if done.returncode else None
    except OSError as error:
        reason = error.strerror or str(error)
    if reason is not None:
        raise CommandError(
            f"{account.pw_name} cannot run {PROGRAM} ({reason}): install Roundhouse where that user can read it, such "
            "as /opt/roundhouse"
        )


def _make_state_folder(state: Path, account: pwd.struct_passwd | None) -> None:
    """Create the state folder for the account: systemd requires that a writable path exists before the unit starts.
    Raises CommandError."""
    try:
        if not state.exists():
            state.mkdir(mode=0o700, parents=True)
            if account is not None:
                os.chown(state, account.pw_uid, account.pw_gid)
        owner = state.stat().st_uid
    except OSError as error:
        raise CommandError(f"state folder {state} cannot be used: {error.strerror or error}") from None
    if account is not None and owner != account.pw_uid:
        raise CommandError(f"{account.pw_name} cannot write {state}: chown -R {account.pw_name}: {state}")


def _read_unit(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{path} cannot be read: {error}") from None


def _check_replaceable(path: Path, present: str | None, unit: ServiceUnit) -> None:
    if present is None:
        return
    state = find_state(present)
    if state is None:
        raise CommandError(f"{path} was not written by `roundhouse service install` and stays; --name names another")
    if state != str(unit.state):
        raise CommandError(
            f"{path} serves another installation, with state folder {state}: name this one with --name, or remove "
            "that one (`roundhouse service remove`)"
        )


def _write_unit(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text.encode(), mode=0o644)
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror or error}") from None


def _start(systemd: Systemd, change: Change, name: str, *, is_started: bool, is_changed: bool) -> None:
    unit = f"{name}.service"
    runs_as_it_was = is_changed and systemd.is_active(unit)
    if not is_started:
        verb = "restart" if runs_as_it_was else "enable --now"
        change.next_lines.append(f"{systemd.words} {verb} {unit}")
        return
    systemd.enable(unit)
    if runs_as_it_was:
        systemd.restart(unit)
    change.done.append(f"enabled and started {unit}")
    journal = "journalctl" if systemd.is_system else "journalctl --user"
    change.next_lines.append(f"{journal} --unit {unit} --follow    # what it says")


def _add_notes(change: Change, unit: ServiceUnit, systemd: Systemd) -> None:
    from controller.cli.up.marks import find_up

    if names := left_out(os.environ):
        change.notes.append(f"set here and not in the unit: {', '.join(names)}; {unit.environment_file} may set them")
    if (up := find_up(unit.state)) is not None and not systemd.is_active(f"{unit.name}.service"):
        change.notes.append(f"`roundhouse up` (process {up.pid}) uses {unit.state}: the service waits until it ends")
    if not systemd.is_system:
        login = pwd.getpwuid(os.getuid()).pw_name
        if not lingers(login):
            change.next_lines.append(f"loginctl enable-linger {login}    # else it runs only during logins of {login}")
