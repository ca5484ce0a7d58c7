"""Asks a gateway's health paths in turn, one request after the other, and prints the milliseconds of each answer.

    python -m tests.bench.health_probe PORT SECONDS     prints one JSON object: path to list of milliseconds

A process of its own, so that the load generator's event loop does not stand in its way.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import sys
import time
from typing import Final

PATHS: Final = ("/health", "/health/ready", "/health/live")
PAUSE_S: Final = 0.005


def measure_health(port: int, seconds: float) -> dict[str, list[float]]:
    """Return the milliseconds of each answer, by path. Raises RuntimeError for a status other than 200."""
    times: dict[str, list[float]] = {path: [] for path in PATHS}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    end = time.perf_counter() + seconds
    for path in itertools.cycle(PATHS):
        began = time.perf_counter()
        if began > end:
            break
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        times[path].append((time.perf_counter() - began) * 1000)
        if answer.status != 200:
            raise RuntimeError(f"{path} answered {answer.status}")
        time.sleep(PAUSE_S)
    connection.close()
    return times


if __name__ == "__main__":
    # The load and the engine need more cores than there may be: who asks must not wait for one, where that is allowed.
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    print(json.dumps(measure_health(int(sys.argv[1]), float(sys.argv[2]))))
