"""The settings under the options of a command line, and where the controller is asked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from controller.cli.exit_codes import CommandError, ExitCode

if TYPE_CHECKING:
    from controller.settings import ControllerSettings


def read_settings(**options: Any) -> ControllerSettings:
    """The settings under these options. Raises CommandError with one line."""
    from controller.settings import SettingsError, load_settings  # pydantic takes 100 ms

    try:
        return load_settings(**options)
    except SettingsError as error:
        raise CommandError(str(error), ExitCode.USAGE) from None


def controller_url(given_url: str | None, state: Path | None) -> str:
    """Where the controller is asked: as the operator says, else where the settings say that it listens."""
    return given_url or read_settings(state=state).controller_url
