"""Text of the systemd unit that runs Roundhouse."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

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


def render_unit(unit: ServiceUnit) -> str:
    """Return the text of the unit file; nothing is written. Raises UnitTextError for a value with a quote, a backslash
    or a control character."""
    template = (_TEMPLATES / ("user.service" if unit.user is None else "system.service")).read_text()
    values = {
        "name": _plain(unit.name),
        "user": _plain(unit.user or ""),
        "program": _quoted(str(unit.program)),
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
