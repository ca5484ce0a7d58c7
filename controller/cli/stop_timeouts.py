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
UP_GATEWAY_S: Final = 6.0
"""Seconds that `up` gives the gateway beyond its grace period. Without running requests it needs none of that period.
"""
UP_PROGRAMS_S: Final = 7.0
"""Seconds that `up` gives retrieval, transfers and, with its engines, the controller: all of them at the same time."""
UP_ENGINES_S: Final = 5.0
"""Grace period of engines when `up` ends, at most: no request is left in them then."""
UP_LEFT_S: Final = 0.5
"""Grace period of engines that a controller which did not end in time has left."""
UP_ENDS_S: Final = 15.0
"""Seconds within which `up` ends, beyond the gateway's grace period: more than the three above together, since what is
killed is not gone at once."""
KILLED_S: Final = 10.0
"""Seconds from a program's SIGKILL to its end. Only the kernel can delay that."""


def gateway_stop_timeout_s() -> float:
    """Return the seconds from SIGTERM until the gateway is killed: its grace period for running requests, plus 30 s
    (`MARGIN_S`).

    Reads `ROUNDHOUSE_SHUTDOWN_GRACE_S` itself, because the command line must not import the gateway's settings. A value
    that is no number of seconds counts as the default, 30 s; the gateway refuses it at its start.
    """
    return _gateway_grace_s() + MARGIN_S


def up_gateway_timeout_s() -> float:
    """Return the seconds from SIGTERM until `up` kills the gateway: its grace period for running requests, plus 6 s
    (`UP_GATEWAY_S`)."""
    return _gateway_grace_s() + UP_GATEWAY_S


def _gateway_grace_s() -> float:
    try:
        grace_s = float(os.environ.get("ROUNDHOUSE_SHUTDOWN_GRACE_S") or GATEWAY_S)
    except ValueError:
        return GATEWAY_S
    return grace_s if 0 <= grace_s < math.inf else GATEWAY_S


def controller_stop_timeout_s(settings: ControllerSettings) -> float:
    """Return the seconds until the controller is killed: the grace period of engines, which end in parallel, plus 30 s
    (`MARGIN_S`)."""
    return settings.stop_timeout_s + MARGIN_S


def side_programs_stop_timeout_s() -> float:
    """Return the seconds that retrieval and transfers get together: 30 s (`MARGIN_S`) each."""
    return 2 * MARGIN_S


def up_stop_timeout_s() -> float:
    """Return the seconds until `up` is killed: the gateway's grace period and the 15 s (`UP_ENDS_S`) in which `up` ends
    everything else, plus 30 s (`MARGIN_S`)."""
    return _gateway_grace_s() + UP_ENDS_S + MARGIN_S
