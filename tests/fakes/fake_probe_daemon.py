"""A fake of a Docker daemon that runs one container at most, whose log a test writes.

Its answers have the shape of the Docker Engine's API, 1.41, as far as `controller.runtimes.docker.gpus` reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

import docker
from docker.errors import APIError, NotFound

T = TypeVar("T")


class FakeProbeDaemon:
    """Stands for `controller.runtimes.docker.client.Daemon` and for the client that it gives to what it calls."""

    def __init__(self) -> None:
        self.container: dict[str, Any] | None = None
        self.lines: list[str] = []
        """What the container has written, with the daemon's timestamps."""
        self.first_line: str | None = None
        """What each container writes as it starts."""
        self.started = 0
        self.start_error: str | None = None
        """Why the daemon refuses to start a container; None: it does not."""

    async def call(self, work: Callable[[docker.APIClient], T]) -> T:
        return work(cast("docker.APIClient", self))

    def write(self, line: str) -> None:
        moment = datetime.fromtimestamp(1_700_000_000 + len(self.lines) + 1000 * self.started, UTC)
        self.lines.append(f"{moment:%Y-%m-%dT%H:%M:%S}.000000000Z {line}")

    def inspect_container(self, container: str) -> dict[str, Any]:
        if self.container is None or container not in (self.container["Id"], self.container["Name"].removeprefix("/")):
            raise NotFound(f"No such container: {container}")
        return self.container

    def create_container_from_config(self, config: dict[str, Any], name: str) -> dict[str, Any]:
        state = {"Status": "created", "Running": False, "ExitCode": 0}
        self.container = {"Id": f"id-{self.started}", "Name": f"/{name}", "Config": config, "State": state}
        return {"Id": self.container["Id"], "Warnings": []}

    def start(self, container: str) -> None:
        """It runs, and writes its first line."""
        if self.start_error is not None:
            raise APIError(self.start_error, explanation=self.start_error)
        self.inspect_container(container)["State"].update(Status="running", Running=True)
        self.started += 1
        self.lines = []
        if self.first_line is not None:
            self.write(self.first_line)

    def logs(self, container: str, *, stdout: bool, stderr: bool, timestamps: bool, tail: int) -> bytes:
        assert (stdout, stderr, timestamps) == (True, False, True)
        self.inspect_container(container)
        return "".join(f"{line}\n" for line in self.lines[-tail:]).encode()

    def remove_container(self, container: str, *, v: bool, force: bool = False) -> None:
        self.inspect_container(container)
        self.container = None
