"""The systemd service: its unit, rendered, installed and removed, and `roundhouse service run`, which systemd starts.

Engines keep running at its end, and the next run adopts them.
"""

from __future__ import annotations

import asyncio
import math
import os
import pwd
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from cli.options import read_settings
from cli.output import CommandError, ExitCode
from cli.up import supervisor
from cli.up.run import RAY_NODE, SIDE_PROGRAMS, SupervisedRun
from cli.up.supervisor import (
    Announcer,
    ChildSpec,
    find_children,
    listen_at,
    remove_record,
    wait_until_gone,
)
from common.atomic_write import write_atomic
from common.listening import LISTENER
from controller.runtimes.process.groups import send_signal
from controller.settings import ControllerSettings

FIRST_LINE: Final = "# Written by `roundhouse service install`"
"""First line of a unit that Roundhouse wrote. A unit without it is never replaced or removed."""
STATE_LINE: Final = "# State folder: "
"""Prefix of the comment line that names the state folder, by which `remove` knows the folder."""
_TEMPLATES: Final = Path(__file__).with_name("units")
_UNQUOTABLE: Final = re.compile(r'["\\\x00-\x1f\x7f]')


class UnitTextError(ValueError):
    """A value holds a quote, a backslash or a control character and so cannot be written in a unit. The message is one
    line."""


@dataclass(frozen=True, slots=True)
class ServiceUnit:
    """The values from which `render_unit` makes a unit file. Paths must be absolute, which is not checked."""

    name: str
    """Name of the unit, without `.service`."""
    user: str | None
    """User that the system's manager runs the unit as. None means a unit of a user's own manager."""
    program: Path
    """Path of the program `roundhouse`."""
    folder: Path
    """Working folder, from which relative paths of the settings start."""
    state: Path
    """State folder. The service may write to it."""
    environment: Mapping[str, str]
    """Environment variables of the service."""
    environment_file: Path
    """File with the operator's own settings. It need not exist."""
    read_only: Sequence[Path]
    """Paths that the service and its engines must not write, although their user may."""
    stop_timeout_s: int
    """Seconds from SIGTERM to SIGKILL of the service."""
    arguments: Sequence[str] = ()
    """Further arguments of `service run`."""


def render_unit(unit: ServiceUnit) -> str:
    """Return the text of the unit file; nothing is written. Raises UnitTextError for a value with a quote, a backslash
    or a control character."""
    template = (_TEMPLATES / ("user.service" if unit.user is None else "system.service")).read_text()
    values = {
        "name": _plain(unit.name),
        "user": _plain(unit.user or ""),
        "program": _quoted(str(unit.program)),
        "arguments": "".join(f" {_quoted(each).replace('$', '$$')}" for each in unit.arguments),
        "folder": _plain(str(unit.folder)),
        "state": _plain(str(unit.state)),
        "environment": "\n".join(f"Environment={_quoted(f'{name}={text}')}" for name, text in unit.environment.items()),
        "environment_file": _plain(str(unit.environment_file)),
        # The prefix `-` lets the unit start although a path is missing.
        "read_only": _paths("-", unit.read_only),
        "writable": _paths("", [unit.state]),
        "stop_timeout_s": str(unit.stop_timeout_s),
    }
    return re.sub("@([a-z_]+)@", lambda found: values[found[1]], template)


def find_state(text: str) -> str | None:
    """Return the state folder that the text of a unit names; empty where its line is missing. None means that the first
    line does not say that Roundhouse wrote the unit."""
    if not text.startswith(FIRST_LINE):
        return None
    line = next((line for line in text.splitlines() if line.startswith(STATE_LINE)), STATE_LINE)
    return line.removeprefix(STATE_LINE).replace("%%", "%")


def _paths(prefix: str, paths: Iterable[Path]) -> str:
    return " ".join(_quoted(f"{prefix}{path}") for path in paths)


def _quoted(text: str) -> str:
    return f'"{_plain(text)}"'


def _plain(text: str) -> str:
    """Return the text in a form that systemd reads unchanged, with or without quotes around it.

    Raises UnitTextError for quotes, backslashes and control characters, which mean different things in different lines.
    """
    if _UNQUOTABLE.search(text):
        raise UnitTextError(f"quotes, backslashes and line breaks cannot stand in a unit of systemd: {text!r}")
    return text.replace("%", "%%")


BOOTED_FOLDER: Final = Path("/run/systemd/system")
"""Folder that exists exactly while systemd runs this machine (sd_booted(3))."""
SYSTEM_UNITS: Final = Path("/etc/systemd/system")
"""Folder of the administrator's units."""
LINGER_FOLDER: Final = Path("/var/lib/systemd/linger")
"""Folder with a file for each user whose services run without a login."""
ANSWER_S: Final = 300.0
"""Maximum seconds for `systemctl`. A stop takes as long as running requests may."""


def require_systemd() -> None:
    """Raise CommandError unless systemd runs this machine and `systemctl` is on PATH."""
    if not BOOTED_FOLDER.is_dir() or shutil.which("systemctl") is None:
        raise CommandError(
            f"systemd does not run this machine ({BOOTED_FOLDER} or `systemctl` is missing), so there is nothing that "
            "would start a service: let whatever starts programs here run `roundhouse service run` (docs/operations.md)"
        )


def config_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of this user's configuration: XDG_CONFIG_HOME in `environ`, else `.config` in HOME. It need not
    exist."""
    return Path(environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "~")).expanduser() / ".config")


def lingers(user: str) -> bool:
    """Return whether the services of the user with this name start with the machine and outlive logins."""
    return (LINGER_FOLDER / user).exists()


@dataclass(frozen=True, slots=True)
class Systemd:
    """Client of one systemd manager, by the program `systemctl`. `unit` is a unit's name with `.service`.

    Methods that run `systemctl` block until it ends. They raise CommandError if `systemctl` is missing, fails, or takes
    longer than 5 minutes (`ANSWER_S`); in the last case the manager may still carry the request out.
    """

    is_system: bool
    """True for the system's manager, False for this user's."""

    @property
    def words(self) -> str:
        """Beginning of a command line for this manager: `systemctl` or `systemctl --user`."""
        return "systemctl" if self.is_system else "systemctl --user"

    @property
    def unit_folder(self) -> Path:
        """Folder of the units that the administrator, or this user, has written. It need not exist."""
        return SYSTEM_UNITS if self.is_system else config_folder(os.environ) / "systemd" / "user"

    def environment_file(self, name: str) -> Path:
        """Return the path of the file in which the operator puts settings that the unit does not have. `name`: of the
        unit, without `.service`. The file need not exist."""
        return (Path("/etc") if self.is_system else config_folder(os.environ)) / "roundhouse" / f"{name}.env"

    def is_active(self, unit: str) -> bool:
        """Return whether the unit runs, starts, reloads or stops; False for an unknown unit. Blocks. Raises
        CommandError where `systemctl` is missing, fails, or takes longer than 5 minutes."""
        done = self._systemctl("show", "--property=ActiveState", "--value", unit)
        return done.strip() in ("active", "activating", "reloading", "deactivating")

    def reload(self) -> None:
        """Make the manager read its unit files again. Blocks. Raises CommandError where `systemctl` is missing, fails,
        or takes longer than 5 minutes."""
        self._systemctl("daemon-reload")

    def enable(self, unit: str) -> None:
        """Start the unit now, unless it runs, and from now on with the machine or, for a user's manager, at the user's
        login. Blocks until it has started. Raises CommandError where `systemctl` is missing, fails (also where the
        unit does not start), or takes longer than 5 minutes."""
        self._systemctl("enable", "--now", unit)

    def restart(self, unit: str) -> None:
        """Restart the unit, or start it if it does not run. Call `reload` first if its unit file has changed. Blocks
        until it has started. Raises CommandError where `systemctl` is missing, fails (also where the unit does not
        start), or takes longer than 5 minutes."""
        self._systemctl("restart", unit)

    def disable(self, unit: str) -> None:
        """Stop the unit, and do not start it with the machine or a login any more. Blocks until it has ended. Raises
        CommandError where `systemctl` is missing, fails (also for an unknown unit), or takes longer than 5 minutes,
        in which case the unit may still end."""
        self._systemctl("disable", "--now", unit)

    def _systemctl(self, *arguments: str) -> str:
        command = [*self.words.split(), "--no-ask-password", *arguments]
        # After `su` or `sudo` the variable is missing, although the user may have a running manager.
        runtime_folder = Path(f"/run/user/{os.getuid()}")
        env = {"XDG_RUNTIME_DIR": str(runtime_folder)} if runtime_folder.is_dir() else {}
        try:
            done = subprocess.run(
                command, env=env | dict(os.environ), capture_output=True, text=True, check=False, timeout=ANSWER_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CommandError(f"`{' '.join(command)}`: {error}") from None
        if done.returncode == 0:
            return done.stdout
        reason = next(iter(done.stderr.strip().splitlines()), f"it ended with {done.returncode}")
        hint = "" if self.is_system else "; a user's systemd is reached from a login of that user (not by su or sudo)"
        raise CommandError(f"`{self.words} {' '.join(arguments)}`: {reason}{hint}")


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
    name: str,
    *,
    is_system: bool,
    user: str | None,
    is_started: bool,
    options: Mapping[str, Any],
    join: Sequence[str] = (),
) -> Change:
    """Write the unit `name`, create its state folder, and with `is_started` start the unit now and with the machine;
    restart it if it runs and its text has changed. Return what was done.

    `user` is whom a system unit runs as; None only without `is_system`. `options` are settings from the command line;
    None takes the default. `join`: arguments of `service run` on a machine that joins a head. The text of a unit that
    is as it should be is not written again.

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
    unit = replace(unit, arguments=join)
    try:
        text = render_unit(unit)
    except UnitTextError as error:
        raise CommandError(str(error), ExitCode.USAGE) from None
    change = Change(systemd.unit_folder / f"{name}.service")
    present = _read_unit(change.path)
    _check_replaceable(change.path, present, unit)
    if not join and not settings.desired.is_dir():
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


PROGRAM_FOLDERS: Final = ("assistant", "cli", "common", "contract", "controller", "gateway", "retrieval", "transfers")
"""Folders of the programs that the unit runs, beside the worker's."""


def plan_unit(
    name: str, settings: ControllerSettings, environment_file: Path, user: str | None, environ: Mapping[str, str]
) -> ServiceUnit:
    """Return the unit for these settings, with the current folder as its working folder. Nothing is written.

    `user` None: a unit of the user's own manager. `environ`: where the variables in `CARRIED` (PATH and others by which
    programs and libraries are found) are taken from.
    """
    from cli.up.run import program_specs

    absolute = {"desired": settings.desired.absolute(), "state": settings.state.absolute()}
    variables = program_specs(settings.model_copy(update=absolute), {})[0].env
    carried = {variable: environ[variable] for variable in CARRIED if environ.get(variable)}
    programs = (Path(sys.prefix), *(Path(__file__).parents[2] / each for each in PROGRAM_FOLDERS))
    return ServiceUnit(
        name=name,
        user=user,
        program=PROGRAM,
        folder=Path.cwd(),
        state=settings.state.absolute(),
        environment={f"ROUNDHOUSE_{each}": variables[f"ROUNDHOUSE_{each}"] for each in SET_BY_UNIT} | carried,
        environment_file=environment_file,
        read_only=(settings.desired.absolute(), *programs, Path(__file__).parents[2] / "worker"),
        stop_timeout_s=math.ceil(
            supervisor.gateway_stop_timeout_s()
            + supervisor.side_programs_stop_timeout_s()
            + supervisor.controller_stop_timeout_s(settings)
            + supervisor.MARGIN_S
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
    from cli.up.supervisor import find_up

    if names := left_out(os.environ):
        change.notes.append(f"set here and not in the unit: {', '.join(names)}; {unit.environment_file} may set them")
    if (up := find_up(unit.state)) is not None and not systemd.is_active(f"{unit.name}.service"):
        change.notes.append(f"`roundhouse up` (process {up.pid}) uses {unit.state}: the service waits until it ends")
    if not systemd.is_system:
        login = pwd.getpwuid(os.getuid()).pw_name
        if not lingers(login):
            change.next_lines.append(f"loginctl enable-linger {login}    # else it runs only during logins of {login}")


def keep_listeners(listeners: Sequence[socket.socket]) -> None:
    """Have systemd keep these sockets, in place of those of earlier runs, over a restart of the service, which gets
    them (sd_pid_notify_with_fds(3), FDSTORE). Does nothing where systemd does not want to hear of it."""
    address = os.environ.pop("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, suppress(OSError):
        manager.connect(address.replace("@", "\0", 1) if address.startswith("@") else address)
        manager.send(f"FDSTOREREMOVE=1\nFDNAME={LISTENER}".encode())
        message = f"FDSTORE=1\nFDNAME={LISTENER}".encode()
        socket.send_fds(manager, [message], [each.fileno() for each in listeners])


class ServiceRun(SupervisedRun):
    """Runs the programs of `specs` (controller, gateway and the side programs) until a signal, and then ends these, but
    not the engines. Making one raises OSError where the state folder does not exist.

    The caller must hold `up.lock` of the state folder until `run` has returned, so that no `up` runs at the same time
    and `down` finds this process.
    """

    def __init__(
        self,
        settings: ControllerSettings,
        specs: Sequence[ChildSpec],
        announcer: Announcer,
        passed: Sequence[int] = (),
    ) -> None:
        """`passed`: descriptors of listening sockets that systemd has kept from the run before."""
        super().__init__(settings, specs, announcer)
        self._passed = passed

    async def run(self) -> ExitCode:
        """Run until SIGTERM or SIGINT, or until a program ends in a way that a restart cannot mend. Then end
        gateway, side programs and controller in this order, by SIGKILL if they do not end in time, and return the exit
        code: DONE after a signal or where a program was told to end, else that of the program's `FatalExit`. SIGHUP
        restarts the gateway alone, without a gap (`Child.replace`).

        Before the first start, programs that a killed run left behind are ended. Call it once, in the main thread: it
        takes over the signal handlers. Raises CommandError where the gateway's addresses cannot be listened on, or the
        record of an earlier run cannot be read, and OSError where the record cannot be removed at the end.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop_event.set)
        loop.add_signal_handler(
            signal.SIGHUP, self._supervisor.replace_child, "gateway", supervisor.gateway_stop_timeout_s()
        )
        await self._end_earlier_programs()
        try:
            listeners = listen_at(self._settings.gateway_hosts, self._settings.port, self._passed)
        except CommandError as error:
            raise CommandError(str(error), ExitCode.ADDRESS_TAKEN) from None  # a name, too, may be known soon
        keep_listeners(listeners)
        self.hold_listeners(listeners)
        ending = await self._supervisor.run(self._stop_event)
        if ending.words is not None:
            self._announcer.print_note(f"{ending.words}; stopping")
        for name, within_s in self._programs():
            if (child := self._supervisor.children.get(name)) is not None:
                child.send_signal(signal.SIGTERM)
                await self._wait_or_kill(child, within_s)
        await self._supervisor.wait_until_ended()
        remove_record(self._settings.state)
        self._announcer.print_note("stopped; engines go on, and `roundhouse down` ends them")
        return ending.exit

    def _programs(self) -> tuple[tuple[str, float], ...]:
        """Return the programs in the order in which they end, each with the seconds it gets. The gateway is first, so
        that running requests may finish."""
        return (
            ("gateway", supervisor.gateway_stop_timeout_s()),
            *((program.name, supervisor.MARGIN_S) for program in SIDE_PROGRAMS),
            ("controller", supervisor.controller_stop_timeout_s(self._settings)),
            (RAY_NODE, supervisor.RAY_ENDS_S),
        )

    async def _end_earlier_programs(self) -> None:
        """End programs that a killed run left behind, because the unit has KillMode=process."""
        for name, within_s in self._programs():
            for record in find_children(self._settings.state, name):
                self._announcer.print_note(f"ending the {name} of an earlier run (process {record.pid})")
                send_signal(record.process, signal.SIGTERM)
                if not await wait_until_gone(record, within_s):
                    send_signal(record.process, signal.SIGKILL)
                    await wait_until_gone(record, within_s)
