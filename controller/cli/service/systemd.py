"""The systemd of this machine: its manager for all, or the one of a user."""

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
"""There while systemd runs this machine, and only then (sd_booted(3))."""
SYSTEM_UNITS: Final = Path("/etc/systemd/system")
LINGER_FOLDER: Final = Path("/var/lib/systemd/linger")
ANSWER_S: Final = 300.0
"""A stop that `systemctl` waits for takes as long as running requests may."""


def require_systemd() -> None:
    """Raises CommandError where systemd does not run this machine."""
    if not BOOTED_FOLDER.is_dir() or shutil.which("systemctl") is None:
        raise CommandError(
            f"systemd does not run this machine ({BOOTED_FOLDER} or `systemctl` is missing), so there is nothing that "
            "would start a service: let whatever starts programs here run `roundhouse service run` (docs/operations.md)"
        )


def config_folder(environ: Mapping[str, str]) -> Path:
    """Where a user's programs are configured."""
    return Path(environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "~")).expanduser() / ".config")


def lingers(user: str) -> bool:
    """Whether the user's services start with the machine and outlive logins."""
    return (LINGER_FOLDER / user).exists()


@dataclass(frozen=True, slots=True)
class Systemd:
    """One of its managers."""

    is_system: bool

    @property
    def words(self) -> str:
        """How a command line of it begins."""
        return "systemctl" if self.is_system else "systemctl --user"

    @property
    def unit_folder(self) -> Path:
        """Where an administrator's, or the user's, own units are."""
        return SYSTEM_UNITS if self.is_system else config_folder(os.environ) / "systemd" / "user"

    def environment_file(self, name: str) -> Path:
        """Where the operator sets what the unit does not."""
        return (Path("/etc") if self.is_system else config_folder(os.environ)) / "roundhouse" / f"{name}.env"

    def is_active(self, unit: str) -> bool:
        """Whether it runs, or is about to. Raises CommandError when the manager cannot be asked."""
        done = self._systemctl("show", "--property=ActiveState", "--value", unit)
        return done.strip() in ("active", "activating", "reloading", "deactivating")

    def reload(self) -> None:
        """Have it read its units. Raises CommandError."""
        self._systemctl("daemon-reload")

    def enable(self, unit: str) -> None:
        """Start the unit now and with the machine (or with its user). Raises CommandError."""
        self._systemctl("enable", "--now", unit)

    def restart(self, unit: str) -> None:
        """Raises CommandError."""
        self._systemctl("restart", unit)

    def disable(self, unit: str) -> None:
        """Stop the unit, and start it no more. Raises CommandError."""
        self._systemctl("disable", "--now", unit)

    def _systemctl(self, *arguments: str) -> str:
        command = [*self.words.split(), "--no-ask-password", *arguments]
        # Who became the user by `su` or `sudo` has no such variable, and the user may well have a manager.
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
