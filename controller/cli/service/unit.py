"""The text of the unit that systemd starts Roundhouse by."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FIRST_LINE: Final = "# Written by `roundhouse service install`"
"""How a unit of ours begins; no other is replaced or removed."""
STATE_LINE: Final = "# State folder: "
_TEMPLATES: Final = Path(__file__).with_name("units")
_UNQUOTABLE: Final = re.compile(r'["\\\x00-\x1f\x7f]')


class UnitTextError(ValueError):
    """A value cannot stand in a unit. The message is one line."""


@dataclass(frozen=True, slots=True)
class ServiceUnit:
    """What differs between units. Paths are absolute."""

    name: str
    """Of the unit, without `.service`."""
    user: str | None
    """Whom the system's manager runs it as; None: it is a unit of a user's own manager."""
    program: Path
    """The program `roundhouse`."""
    folder: Path
    """Working folder, from which relative paths of the settings start."""
    state: Path
    environment: Mapping[str, str]
    environment_file: Path
    """What the operator sets; it need not be there."""
    read_only: Sequence[Path]
    """What the service and its engines never write, though their user may."""
    stop_timeout_s: int


def render_unit(unit: ServiceUnit) -> str:
    """The unit file's text. Raises UnitTextError."""
    template = (_TEMPLATES / ("user.service" if unit.user is None else "system.service")).read_text()
    values = {
        "name": _plain(unit.name),
        "user": _plain(unit.user or ""),
        "program": _quoted(str(unit.program)),
        "folder": _plain(str(unit.folder)),
        "state": _plain(str(unit.state)),
        "environment": "\n".join(f"Environment={_quoted(f'{name}={text}')}" for name, text in unit.environment.items()),
        "environment_file": _plain(str(unit.environment_file)),
        # A path that is not there is no reason not to start.
        "read_only": _paths("-", unit.read_only),
        "writable": _paths("", [unit.state]),
        "stop_timeout_s": str(unit.stop_timeout_s),
    }
    return re.sub("@([a-z_]+)@", lambda found: values[found[1]], template)


def find_state(text: str) -> str | None:
    """The state folder of a unit of ours; None: the unit is somebody else's."""
    if not text.startswith(FIRST_LINE):
        return None
    line = next((line for line in text.splitlines() if line.startswith(STATE_LINE)), STATE_LINE)
    return line.removeprefix(STATE_LINE).replace("%%", "%")


def _paths(prefix: str, paths: Iterable[Path]) -> str:
    return " ".join(_quoted(f"{prefix}{path}") for path in paths)


def _quoted(text: str) -> str:
    return f'"{_plain(text)}"'


def _plain(text: str) -> str:
    """As systemd takes it with quotes around it or without. Quotes and escapes mean another thing in each line."""
    if _UNQUOTABLE.search(text):
        raise UnitTextError(f"quotes, backslashes and line breaks cannot stand in a unit of systemd: {text!r}")
    return text.replace("%", "%%")
