"""Logs of containers that are on their way out."""

from __future__ import annotations

from typing import Any

from docker.errors import APIError

from controller.runtimes.docker.logs import DockerLogCursor, read_log_part

ENDED = {"Id": "c" * 64, "State": {"Status": "exited"}}


class Removing:
    """A daemon that is removing the container."""

    def logs(self, *_: object, **__: object) -> bytes:
        """Refused."""
        raise APIError("can not get logs from container which is dead or marked for removal")


def test_one_that_is_being_removed_is_read_from_what_was_kept_and_followed_to_its_end() -> None:
    client: Any = Removing()
    assert read_log_part(client, ENDED, None, 5) is None
    cursor = str(DockerLogCursor("2026-11-21T20:00:00.000000001Z"))
    part = read_log_part(client, ENDED, cursor, 5)
    assert part is not None
    assert (part.lines, part.cursor, part.running) == ((), cursor, True)
