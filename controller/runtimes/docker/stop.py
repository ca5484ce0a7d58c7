"""Stops a container: first its stop signal, after a grace period SIGKILL.

It polls instead of calling `docker stop`, which would block a thread for the grace period, and with it the program's
end.
"""

from __future__ import annotations

import asyncio
from typing import Final

from controller.runtimes.base import RuntimeUnavailableError
from controller.runtimes.docker.client import Daemon, DaemonRefusedError
from controller.runtimes.docker.containers import Inspected, inspect_container
from controller.runtimes.docker.inspect import phase_of
from controller.state import Phase

KILL_WAIT_S: Final = 20.0
"""Seconds to wait after SIGKILL. Long, because a process that waits for its GPU cannot end sooner."""
FIRST_POLL_S: Final = 0.05
MAX_POLL_S: Final = 0.5


async def stop_container(daemon: Daemon, container: Inspected, grace_s: float) -> None:
    """Stop an inspected container, and return when it has ended or is gone. It gets its stop signal (SIGTERM, unless
    its image names another one), and SIGKILL after `grace_s` seconds. The container is not removed. One that does not
    run is no error.

    Raises RuntimeUnavailableError if the container does not end within 20 s (`KILL_WAIT_S`) after SIGKILL, or if the
    daemon does not answer.
    """
    container_id = str(container["Id"])
    signal = str(container["Config"].get("StopSignal") or "SIGTERM")
    for each, wait_s in ((signal, grace_s), ("SIGKILL", KILL_WAIT_S)):
        await _kill(daemon, container_id, each)
        if await _wait_for_end(daemon, container_id, wait_s):
            return
    raise RuntimeUnavailableError(f"container {container['Name']} does not end, not even by SIGKILL")


async def _kill(daemon: Daemon, container_id: str, signal: str) -> None:
    try:
        await daemon.call(lambda client: client.kill(container_id, signal))
    except DaemonRefusedError as refused_error:
        if refused_error.status not in {404, 409}:  # gone, or not running
            raise


async def _wait_for_end(daemon: Daemon, container_id: str, wait_s: float) -> bool:
    loop = asyncio.get_running_loop()
    deadline, pause_s = loop.time() + wait_s, FIRST_POLL_S
    while True:
        container = await daemon.call(lambda client: inspect_container(client, container_id))
        if container is None or phase_of(container) is not Phase.RUNNING:
            return True
        if loop.time() >= deadline:
            return False
        await asyncio.sleep(min(pause_s, max(0.0, deadline - loop.time())))
        pause_s = min(MAX_POLL_S, 2 * pause_s)
