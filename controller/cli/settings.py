"""The settings under the options of a command line, and where the controller is asked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from controller.cli.exit_codes import CommandError, ExitCode

if TYPE_CHECKING:
    from controller.settings import ControllerSettings


def read_settings(**options: Any) -> ControllerSettings:
    """Return the controller's settings: `options` by the setting's name, where not None, before environment and
    defaults. Raises CommandError (ExitCode.USAGE) where a setting is wrong."""
    from controller.settings import SettingsError, load_settings  # pydantic takes 100 ms

    try:
        return load_settings(**options)
    except SettingsError as error:
        raise CommandError(str(error), ExitCode.USAGE) from None


def controller_url(given_url: str | None, state: Path | None) -> str:
    """Return the address at which the controller is asked: `given_url` as the operator gave it, unchecked, else where
    the settings say that a controller with this state folder listens. Raises CommandError where a setting is wrong."""
    return given_url or read_settings(state=state).controller_url
