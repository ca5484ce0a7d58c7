"""Reads engines' logs: from the daemon while the container exists, from the state folder afterwards."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import docker
from docker.errors import APIError

from controller.runtimes.base import LogPart
from controller.runtimes.docker.inspect import parse_time, phase_of
from controller.runtimes.ended_logs import EndedLogs
from controller.runtimes.logs import (
    EXIT_LINES,
    PART_BYTES,
    LogMark,
    ended_log_part,
    last_lines,
    plain_lines,
    plain_tail,
)
from controller.state import Phase

READ_LINES: Final = 400
"""Records that are read for a tail. A line may be several records, and a progress bar is many."""

_RECORD_BYTES: Final = 16 * 1024
"""Size of a record. The daemon splits longer lines into several records, and writes a time before each."""
_TIME: Final = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z) ")


def read_log(client: docker.APIClient, container_id: str, records: int = READ_LINES) -> bytes:
    """Return the last `records` records of a container's output, stdout and stderr as one, without times. Blocks.

    Empty if there are none, or if the daemon refuses, as for a container that is gone or being removed. Raises the
    errors of requests if the daemon does not answer.
    """
    try:
        data: bytes = client.logs(container_id, stdout=True, stderr=True, stream=False, tail=records)
    except APIError:
        return b""
    return data


class ExitTails:
    """A cache of the log tails of ended containers, so that each listing of replicas need not read them again. Threads
    may use it at the same time. It grows until `keep_only`."""

    def __init__(self) -> None:
        self._tails: dict[tuple[str, str], str] = {}

    def read_tail(self, client: docker.APIClient, container: Mapping[str, Any]) -> str:
        """Return the last 400 (`EXIT_LINES`) lines of an ended container's log, as `plain_tail` returns them. Blocks
        the first time. Empty if there are none or the daemon refuses, which is cached too. Raises the errors of
        requests if the daemon does not answer."""
        # The time of the end is part of the key, because somebody may start the container again by hand.
        key = (str(container["Id"]), str((container.get("State") or {}).get("FinishedAt")))
        if key not in self._tails:
            self._tails[key] = plain_tail(read_log(client, key[0], 2 * EXIT_LINES), EXIT_LINES)
        return self._tails[key]

    def keep_only(self, container_ids: set[str]) -> None:
        """Forget the tails of all containers except these."""
        self._tails = {key: tail for key, tail in self._tails.items() if key[0] in container_ids}


@dataclass(frozen=True, slots=True)
class DockerLogCursor:
    """A client's position in a container's log. The default is the position before the first record."""

    time: str = ""
    """The latest time of the records that the client was given: RFC 3339 with nine digits, which sorts as text. Empty:
    it was given none."""
    count: int = 0
    """How many records with that time the client was given."""
    mark: LogMark = field(default_factory=LogMark)
    """The same position by content, for the kept log once the container is gone."""

    @classmethod
    def parse(cls, cursor: str | None) -> DockerLogCursor | None:
        """Parse the text that `str` made of a cursor; None for None and for any other text."""
        match = re.fullmatch(r"([\d:.TZ-]{30}|)_(\d{1,9})_(\S+)", cursor or "", re.ASCII)
        mark = LogMark.parse(match[3]) if match else None
        if match is None or mark is None or (match[1] and parse_time(match[1]) is None):
            return None
        return cls(match[1], int(match[2]), mark)

    def __str__(self) -> str:
        return f"{self.time}_{self.count}_{self.mark}"

    def filter_since(self) -> float | None:
        """Return the Unix time for the daemon's `since` filter; None for the default cursor, which needs no filter.

        The result is some microseconds before `time`, since a float cannot hold all of its digits and the filter must
        not leave records out. So records before the position come too; `records_after` drops them.
        """
        moment = parse_time(f"{self.time[:26]}Z") if self.time else None
        return None if moment is None else moment - 1e-5

    def cursor_after(self, records: Sequence[LogRecord]) -> DockerLogCursor:
        """Return the position after these records, all of which must follow this position, oldest first. Without
        records, or if none has a time, return this position."""
        latest = max((each.time for each in records), default="")
        if not latest:
            return self
        count = sum(1 for each in records if each.time == latest)
        mark = self.mark.mark_after(b"".join(each.data for each in records))
        return DockerLogCursor(latest, count + (self.count if latest == self.time else 0), mark)

    def records_after(self, records: Sequence[LogRecord]) -> list[LogRecord]:
        """Return those of the records that follow this position, in their order. `records` must be in the order of the
        log, and contain every record with the position's time; records without a time follow only the default."""
        new_records, seen_count = [], 0
        for each in records:
            if each.time == self.time and seen_count < self.count:
                seen_count += 1
            elif each.time >= self.time:
                new_records.append(each)
        return new_records


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One line of a container's output, with its newline if it has one, as `parse_records` returns it. `time` empty:
    not known."""

    time: str
    """When the daemon logged the line, as in `DockerLogCursor.time`; empty: not known."""
    data: bytes
    """The line, with its newline if it has one."""


def parse_records(data: bytes) -> list[LogRecord]:
    """Split output that the daemon returned with timestamps into lines. A line that the daemon split into several
    records is put together again, and gets the time of the first one. A line without a timestamp gets an empty time."""
    return [_parse_record(line) for line in re.findall(rb"[^\n]*\n|[^\n]+", data)]


def _parse_record(line: bytes) -> LogRecord:
    match = _TIME.match(line)
    if match is None:
        return LogRecord("", line)
    remainder, parts = line[match.end() :], []
    while len(remainder) > _RECORD_BYTES and (inner := _TIME.match(remainder, _RECORD_BYTES)):
        parts.append(remainder[:_RECORD_BYTES])
        remainder = remainder[inner.end() :]
    return LogRecord(match[1].decode(), b"".join([*parts, remainder]))


def read_log_part(
    client: docker.APIClient, container: Mapping[str, Any], cursor: str | None, lines: int
) -> LogPart | None:
    """Return the whole lines that a container wrote after `cursor`, each exactly once, oldest first. Blocks.

    With a `cursor` of None, or one that cannot be parsed, return the last `lines` lines. With a cursor, a part has at
    most about 256 KiB (`PART_BYTES`), and `running` stays true until all was returned. If the daemon refuses, as for a
    container that is being removed, nothing is raised: the part is then empty, or None if there is no cursor yet. Its
    log is then among the kept ones (`read_ended_part`). Raises the errors of requests if the daemon does not answer.
    """
    log_cursor = DockerLogCursor.parse(cursor)
    has_ended = phase_of(container) is Phase.EXITED
    # Without a cursor, read more records than lines: a long line is several, and the last one may be unfinished.
    limits: dict[str, Any] = {"tail": 2 * lines + 1} if log_cursor is None else {"since": log_cursor.filter_since()}
    try:
        data: bytes = client.logs(
            str(container["Id"]), stdout=True, stderr=True, stream=False, timestamps=True, **limits
        )
    except APIError:  # it is being removed: the next call reads the rest from the kept log
        return None if log_cursor is None else LogPart((), cursor or "", running=True)
    new_records = (log_cursor or DockerLogCursor()).records_after(parse_records(data))
    part_records = _fitting_records(
        new_records, has_ended=has_ended, max_bytes=len(data) if log_cursor is None else PART_BYTES
    )
    text = b"".join(each.data for each in part_records)
    part_lines = last_lines(text[-PART_BYTES:], lines) if log_cursor is None else tuple(plain_lines(text[:PART_BYTES]))
    return LogPart(
        part_lines,
        str((log_cursor or DockerLogCursor()).cursor_after(part_records)),
        running=not has_ended or len(part_records) < len(new_records),
    )


def _fitting_records(records: Sequence[LogRecord], *, has_ended: bool, max_bytes: int) -> Sequence[LogRecord]:
    """Return the whole lines among the first `max_bytes`, but at least one, so that a longer line does not block."""
    if records and not has_ended and not records[-1].data.endswith(b"\n") and len(records[-1].data) < PART_BYTES:
        records = records[:-1]
    size = 0
    for count, each in enumerate(records):
        size += len(each.data)
        if count and size > max_bytes:
            return records[:count]
    return records


def read_ended_part(ended_logs: EndedLogs, name: str, cursor: str | None, lines: int) -> LogPart | None:
    """Return what follows `cursor` in the kept log of a removed container, all of it in one part with `running` False.
    Without a cursor, or with one that cannot be parsed, return the last `lines` lines. If no log was kept, return an
    empty part, or None without a cursor. `name` becomes a file name unchecked. Blocks. Raises
    RuntimeUnavailableError if the kept log cannot be read."""
    log_cursor, data = DockerLogCursor.parse(cursor), ended_logs.read_log(name)
    if data is None:
        return LogPart((), str(log_cursor), running=False) if log_cursor else None
    mark = log_cursor.mark if log_cursor else None
    return ended_log_part(
        data, mark, lines, str(DockerLogCursor(log_cursor.time if log_cursor else "", 0, LogMark.of(data)))
    )
