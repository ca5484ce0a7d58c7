"""Reads the host's GPUs for a controller in a container, which lacks NVIDIA's library, by a small probe container."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import docker
from docker.errors import APIError

from controller.hosts import Gpu, GpuDriver, UnreadGpu
from controller.runtimes.docker.client import Daemon, DaemonRefusedError, refused_error_of
from controller.runtimes.docker.container_spec import (
    PROBE_ROLE,
    bounded_log,
    hardened_host_config,
    is_own,
    own_labels,
    phase_of,
)
from controller.runtimes.docker.containers import Inspected, create_container, inspect_container, labels_of
from controller.runtimes.docker.start_problems import no_gpu_support
from controller.runtimes.nvml import Reading
from controller.state import Phase

INTERVAL_S: Final = 2
"""Seconds between two readings of the probe."""
STALE_S: Final = 15.0
"""Seconds without a new line after which the probe counts as hanging, as the library may with a GPU that fell off the
bus."""
ABSENT_RECHECK_S: Final = 600.0
"""Seconds until a probe is tried again after Docker had no GPU support."""
MAX_BACKOFF_S: Final = 60.0
"""Seconds between two probe containers at most, after failures."""
UNREADABLE_READINGS: Final = 5
"""Consecutive failed readings after which the probe container is replaced. `systemctl daemon-reload` may take the
devices away from a running container for good; NVML then reports "Unknown Error", which may also be transient."""
FIRST_READING_S: Final = 5.0
"""Seconds for which a new probe's first reading is awaited."""
COMMAND: Final = ("/opt/roundhouse/bin/python", "-m", "controller.runtimes.nvml", "--interval", str(INTERVAL_S))
"""The program of the probe container."""
ALL_GPUS: Final[tuple[Mapping[str, Any], ...]] = ({"Count": -1, "Capabilities": [["gpu", "utility"]]},)
"""DeviceRequests that give a container all GPUs."""

_MIB: Final = 2**20

log = logging.getLogger(__name__)


class GpuProbe:
    """Reads the host's GPUs: keeps a probe container running, named `rh-<instance>-gpu-probe`, which prints a reading
    every 2 s (`INTERVAL_S`), and reads the last line of its log. The container starts at the first `read_gpus`, which
    first removes one that an earlier controller left, and runs until `close`. `image` must have `command`, `devices`
    are Docker's DeviceRequests, and `clock` returns seconds of a monotonic clock."""

    def __init__(
        self,
        daemon: Daemon,
        instance: str,
        image: str,
        *,
        command: Sequence[str] = COMMAND,
        devices: Sequence[Mapping[str, Any]] = ALL_GPUS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._daemon = daemon
        self._instance = instance
        self._image = image
        self._command = tuple(command)
        self._devices = devices
        self._clock = clock
        self._name = f"rh-{instance}-gpu-probe"
        self._lock = asyncio.Lock()
        self._is_begun = False
        self._failures = 0
        self._unreadable_count = 0
        self._not_before = clock()
        self._line = ""
        self._line_changed_at = 0.0
        self._problem: str | None = None
        self._absence: str | None = None
        self.driver: GpuDriver | None = None
        """The driver that the last reading found; None: it found none, failed, or did not report it."""
        self.unread_gpus: tuple[UnreadGpu, ...] = ()
        """The GPUs that the last reading left out because they cannot be read; empty if the probe failed."""

    @property
    def reason(self) -> str | None:
        """Why the last reading found no GPU or failed, as a sentence; None: it found GPUs, or none was made yet."""
        if self._problem is not None:
            return f"the GPUs cannot be read now: {self._problem}"
        return self._absence

    async def read_gpus(self) -> tuple[Gpu, ...] | None:
        """Return the host's GPUs as the probe last printed them. Empty: there are none. None: unknown, since none can
        be read now, or could be so far.

        Starts the probe container if it does not run, unless it failed a short time ago, and waits up to 5 s
        (`FIRST_READING_S`) for its first reading. A probe that fails or hangs is removed and raises nothing: `reason`
        says why. Raises RuntimeUnavailableError if the daemon does not answer or refuses. Concurrent calls run one
        after another.
        """
        async with self._lock:
            if not self._is_begun:
                # The probe of an earlier controller may run another image.
                await self._daemon.call(self._remove)
                self._is_begun = True
            if self._clock() < self._not_before:
                return self._report_unread()
            container = await self._daemon.call(lambda client: inspect_container(client, self._name))
            if container is None:
                return await self._await_first_reading()
            return await self._read_container(container)

    async def close(self) -> None:
        """Remove the probe container; does nothing before the first `read_gpus`. A later `read_gpus` starts it again.
        Raises RuntimeUnavailableError if the daemon does not answer or refuses."""
        async with self._lock:
            if self._is_begun:
                await self._daemon.call(self._remove)

    async def _await_first_reading(self) -> tuple[Gpu, ...] | None:
        try:
            await self._daemon.call(self._start)
        except DaemonRefusedError as error:
            if no_gpu_support(error.message):
                self._problem, self.driver, self.unread_gpus = None, None, ()
                self._absence = f"this Docker Engine has no NVIDIA support: {error.message}"
                self._not_before = self._clock() + ABSENT_RECHECK_S
                return ()
            return await self._record_failure(error.message)
        self._line, self._line_changed_at = "", self._clock()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + FIRST_READING_S
        while loop.time() < deadline:
            container = await self._daemon.call(lambda client: inspect_container(client, self._name))
            if container is None or phase_of(container) is not Phase.RUNNING or await self._read_last_line(container):
                break
            await asyncio.sleep(0.1)
        return self._report_unread() if container is None else await self._read_container(container)

    async def _read_container(self, container: Inspected) -> tuple[Gpu, ...] | None:
        if not is_own(labels_of(container), self._instance, PROBE_ROLE):
            return await self._record_failure(
                f"the name {self._name} is taken by a container that is not of this Roundhouse"
            )
        line = await self._read_last_line(container)
        if phase_of(container) is not Phase.RUNNING:
            return await self._record_failure(f"the probe ended with exit code {container['State'].get('ExitCode')}")
        is_new = line != self._line
        if is_new:
            self._line, self._line_changed_at = line, self._clock()
        elif (silent_s := self._clock() - self._line_changed_at) > STALE_S:
            return await self._record_failure(f"the probe has said nothing for {silent_s:.0f} s")
        _, _, text = line.partition(" ")
        if not text:
            return self._report_unread()
        try:
            reading = Reading.from_line(text)
        except ValueError as error:
            return await self._record_failure(str(error))
        self.driver = reading.driver
        self.unread_gpus = reading.unread_gpus
        self._unreadable_count = count_unreadable(self._unreadable_count, reading, is_new=is_new)
        if self._unreadable_count >= UNREADABLE_READINGS:
            log.warning("%s: nothing could be read %d times in a row: it is made anew", self._name, UNREADABLE_READINGS)
            return await self._record_failure(reading.error or "its library fails", reading.unread_gpus)
        if reading.gpus is None:
            return self._report_unread(reading.error)
        self._failures, self._problem = 0, None
        self._absence = None if reading.gpus else reading.error or "no NVIDIA GPU was found"
        return reading.gpus

    async def _record_failure(self, problem: str, unread_gpus: tuple[UnreadGpu, ...] = ()) -> tuple[Gpu, ...] | None:
        self.driver, self.unread_gpus = None, unread_gpus
        await self._daemon.call(self._remove)
        self._unreadable_count = 0
        self._failures += 1
        self._not_before = self._clock() + min(MAX_BACKOFF_S, 2.0 ** min(self._failures, 10))
        return self._report_unread(problem)

    def _report_unread(self, problem: str | None = None) -> tuple[Gpu, ...] | None:
        if problem is not None and problem != self._problem:
            self._problem = problem
            log.warning("the GPUs cannot be read: %s", problem)
        return () if self._absence is not None and self._problem is None else None

    async def _read_last_line(self, container: Inspected) -> str:
        """Return the time at which the daemon logged the probe's last line, a space, and that line; empty before the
        first line."""

        def work(client: docker.APIClient) -> str:
            data: bytes = client.logs(container["Id"], stdout=True, stderr=False, timestamps=True, tail=1)
            return data.decode(errors="replace").strip()

        return await self._daemon.call(work)

    def _start(self, client: docker.APIClient) -> None:
        config = {
            "Image": self._image,
            "Entrypoint": list(self._command),
            "Cmd": [],
            "User": "0:0",
            "Labels": own_labels(self._instance, PROBE_ROLE),
            "Healthcheck": {"Test": ["NONE"]},
            "HostConfig": {
                **hardened_host_config(),
                "NetworkMode": "none",
                # The library reports the processes on a GPU by their ids in the host's PID namespace.
                "PidMode": "host",
                "PidsLimit": 64,
                "Memory": 256 * _MIB,
                "LogConfig": bounded_log(2),
                "DeviceRequests": [dict(each) for each in self._devices],
            },
        }
        container_id = create_container(client, self._name, config)
        try:
            client.start(container_id)
        except APIError as error:
            client.remove_container(container_id, force=True, v=True)
            raise refused_error_of(error) from error

    def _remove(self, client: docker.APIClient) -> None:
        container = inspect_container(client, self._name)
        if container is not None and is_own(labels_of(container), self._instance, PROBE_ROLE):
            client.remove_container(str(container["Id"]), force=True, v=True)


def count_unreadable(count: int, reading: Reading, *, is_new: bool) -> int:
    """Return the number of consecutive failed readings up to and including `reading`; 0 if it did not fail. `count` is
    the number before it. `is_new` False means that the reading was already counted."""
    if reading.gpus is not None:
        return 0
    return count + 1 if is_new else count
