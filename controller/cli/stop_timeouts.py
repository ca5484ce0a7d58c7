"""Seconds that each program of an installation gets to end before it is killed."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from controller.settings import ControllerSettings

MARGIN_S: Final = 30.0
"""Seconds added to a program's grace period, for everything else that the program must finish."""
GATEWAY_S: Final = 30.0
"""The gateway's default grace period for running requests, in seconds."""
FORCED_S: Final = 2.0
"""Grace period of engines after a second Ctrl-C, in seconds."""
KILLED_S: Final = 10.0
"""Seconds from a program's SIGKILL to its end. Only the kernel can delay that."""


def gateway_stop_timeout_s() -> float:
    """Return the seconds from SIGTERM until the gateway is killed: its grace period for running requests, plus 30 s
    (`MARGIN_S`).

    Reads `ROUNDHOUSE_SHUTDOWN_GRACE_S` itself, because the command line must not import the gateway's settings. A value
    that is no number of seconds counts as the default, 30 s; the gateway refuses it at its start.
    """
    try:
        grace_s = float(os.environ.get("ROUNDHOUSE_SHUTDOWN_GRACE_S") or GATEWAY_S)
    except ValueError:
        grace_s = GATEWAY_S
    return (grace_s if 0 <= grace_s < math.inf else GATEWAY_S) + MARGIN_S


def controller_stop_timeout_s(settings: ControllerSettings) -> float:
    """Return the seconds until the controller is killed: the grace period of engines, which end in parallel, plus 30 s
    (`MARGIN_S`)."""
    return settings.stop_timeout_s + MARGIN_S


def side_programs_stop_timeout_s() -> float:
    """Return the seconds that retrieval and transfers get together: 30 s (`MARGIN_S`) each."""
    return 2 * MARGIN_S


def up_stop_timeout_s(settings: ControllerSettings) -> float:
    """Return the seconds until `up` is killed: the sum of what the gateway, retrieval, transfers, the controller and
    remaining engines get, since it ends them one after the other."""
    return gateway_stop_timeout_s() + side_programs_stop_timeout_s() + 2 * controller_stop_timeout_s(settings)
