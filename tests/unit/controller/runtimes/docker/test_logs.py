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


class Running:
    """A daemon that has what a container wrote so far."""

    def __init__(self) -> None:
        self.data = b""

    def logs(self, *_: object, **__: object) -> bytes:
        """All of it: more than was asked for."""
        return self.data


def test_a_line_that_is_still_being_written_is_given_once_it_is_whole() -> None:
    daemon = Running()
    client: Any = daemon
    running = {"Id": "c" * 64, "State": {"Status": "running"}}
    daemon.data = b"2026-11-21T20:00:00.000000001Z one\n2026-11-21T20:00:00.000000002Z tw"
    first = read_log_part(client, running, None, 5)
    assert first is not None
    assert (first.lines, first.running) == (("one",), True)
    daemon.data += b"o\n"
    second = read_log_part(client, running, first.cursor, 5)
    assert second is not None
    assert (second.lines, second.running) == (("two",), True)
    daemon.data += b"2026-11-21T20:00:00.000000003Z thr"
    last = read_log_part(client, ENDED, second.cursor, 5)
    assert last is not None
    assert (last.lines, last.running) == (("thr",), False)
