"""The settings under the options of a command line, and where the controller is asked."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from controller.cli.exit_codes import CommandError, ExitCode

if TYPE_CHECKING:
    from controller.settings import ControllerSettings


def read_settings(**options: Any) -> ControllerSettings:
    """Return the controller's settings. `options` (by the setting's name; None: not given) override the environment,
    which overrides the defaults. Raises CommandError (ExitCode.USAGE) where a setting is wrong."""
    from controller.settings import SettingsError, load_settings  # pydantic takes 100 ms

    try:
        return load_settings(**options)
    except SettingsError as error:
        raise CommandError(str(error), ExitCode.USAGE) from None


def controller_url(given_url: str | None, state: Path | None) -> str:
    """Return the address at which the controller is asked: `given_url` as the operator gave it, unchecked, else where
    the settings say that a controller with this state folder listens. Raises CommandError where a setting is wrong."""
    return given_url or read_settings(state=state).controller_url


def own_gateway_url(settings: ControllerSettings) -> str:
    """Return the URL of the gateway that `up` starts with these settings and this environment, for programs of this
    machine: https where it has a certificate. The port is 0 where the setting is 0, though the gateway then takes a
    free one. The certificate is for the names that clients use, not for this address, so do not verify it."""
    return settings.gateway_url(is_tls=bool(os.environ.get("ROUNDHOUSE_TLS_CERT")))
