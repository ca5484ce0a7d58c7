"""How long the programs have to end, in seconds, before they are killed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from controller.settings import ControllerSettings

MARGIN_S: Final = 30.0
"""Beyond a program's own grace, for all else that it has to finish."""
GATEWAY_S: Final = 30.0
"""The gateway's own grace for running requests, where its setting says nothing."""
FORCED_S: Final = 2.0
"""Of engines, after a second Ctrl-C."""
KILLED_S: Final = 10.0
"""From a program's SIGKILL to its end, which only the system can hold up."""


def gateway_stop_timeout_s() -> float:
    """The gateway: its running requests. Its settings are not ours to import; a wrong value it refuses itself."""
    try:
        return float(os.environ.get("ROUNDHOUSE_SHUTDOWN_GRACE_S") or GATEWAY_S) + MARGIN_S
    except ValueError:
        return GATEWAY_S + MARGIN_S


def controller_stop_timeout_s(settings: ControllerSettings) -> float:
    """The controller: its engines, which end side by side."""
    return settings.stop_timeout_s + MARGIN_S


def up_stop_timeout_s(settings: ControllerSettings) -> float:
    """`up`: the gateway, then the controller, then whatever engines are left."""
    return gateway_stop_timeout_s() + 2 * controller_stop_timeout_s(settings)
