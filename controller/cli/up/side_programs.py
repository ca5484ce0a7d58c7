"""Programs beside the controller and the gateway: which ones `up` starts, and with what environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from common.program_address import split_listen_address
from common.setting_names import KNOWN_VARIABLES, RETRIEVAL_VARIABLES, TRANSFERS_VARIABLES
from controller.cli.up.announce import Announcer
from controller.settings import ControllerSettings


@dataclass(frozen=True, slots=True)
class SideProgram:
    """A program without which the others go on. Its `name` is also that of its Python package, and of the extra that
    installs what it needs."""

    name: str
    packages: tuple[str, ...]
    """Modules of its extra, which it cannot start without."""
    missing_note: str
    """What does not work without the packages, for the operator."""
    is_wanted: Callable[[ControllerSettings], bool]
    without: Mapping[str, object]
    """Settings, by field name, of an `up` that does not start it."""
    variables: Callable[[ControllerSettings, Mapping[str, str]], dict[str, str]]
    """Returns its environment, from the settings and the environment of the other programs."""


CLEAN_VARIABLES: Final = frozenset(
    {"PATH", "PYTHONPATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR"}
)
"""Variables of this process that `transfers` gets, which talks to strangers: none that may hold a secret."""


def program_socket(settings: ControllerSettings, name: str) -> Path:
    """Return the path of a program's socket: beside the controller's, whose path an operator may have chosen to be
    short, else in the state folder."""
    address = split_listen_address(settings.listen)
    return (address.parent if isinstance(address, Path) else settings.state) / f"{name}.sock"


def drop_programs_without_packages(settings: ControllerSettings, announcer: Announcer) -> ControllerSettings:
    """Return the settings without the programs whose packages are not installed. `announcer` prints a note for each,
    which says what to install."""
    for program in SIDE_PROGRAMS:
        if program.is_wanted(settings) and any(find_spec(name) is None for name in program.packages):
            announcer.print_note(
                f"{program.missing_note}: `pip install 'roundhouse[{program.name}]'` brings what is missing"
            )
            settings = settings.model_copy(update=dict(program.without))
    return settings


def _retrieval_variables(_settings: ControllerSettings, env: Mapping[str, str]) -> dict[str, str]:
    others = KNOWN_VARIABLES - RETRIEVAL_VARIABLES
    return {name: value for name, value in env.items() if name not in others}


def _transfers_variables(_settings: ControllerSettings, env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name in CLEAN_VARIABLES | TRANSFERS_VARIABLES}


SIDE_PROGRAMS: Final = (
    SideProgram(
        name="retrieval",
        packages=("qdrant_edge", "pypdfium2", "python_multipart"),
        missing_note="no documents are served",
        is_wanted=lambda settings: settings.retrieval,
        without={"retrieval": False},
        variables=_retrieval_variables,
    ),
    SideProgram(
        name="transfers",
        packages=("huggingface_hub", "httpx2", "starlette"),
        missing_note="no models are downloaded",
        is_wanted=lambda settings: settings.downloads != "off",
        without={"downloads": "off"},
        variables=_transfers_variables,
    ),
)
"""`service run` and `down` end them in this order, after the gateway and before the controller; `up` ends them at the
same time as the controller."""
PROGRAMS_IN_END_ORDER: Final = ("gateway", *(program.name for program in SIDE_PROGRAMS), "controller")
"""All programs of an `up`. The gateway ends first, because its running requests need the others."""
