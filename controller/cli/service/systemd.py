"""Interface to systemd: the system's manager, or a user's own manager."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from controller.cli.exit_codes import CommandError

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
