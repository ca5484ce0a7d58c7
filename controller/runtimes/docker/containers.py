"""Finds, creates, starts, measures, stops and removes containers, pulls their images, and reads their logs. Blocking.
Only containers of this instance are ever changed.

A stop polls instead of calling `docker stop`, which would block a thread for the grace period, and with it the
program's end.

Errors of the daemon that a function does not name are raised as docker-py raises them (APIError, requests' errors).
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, Final

import docker
from docker.errors import APIError, DockerException, NotFound
from docker.utils import parse_repository_tag

from controller.runtimes.base import LogPart, RuntimeUnavailableError, StartError
from controller.runtimes.docker.client import Daemon, DaemonRefusedError, refused_error_of
from controller.runtimes.docker.container_spec import (
    CACHE,
    REPLICA_ROLE,
    UnreadableLabelsError,
    cache_folder_archive,
    is_own,
    own_filter,
    parse_time,
    phase_of,
    read_labels,
)
from controller.runtimes.docker.start_problems import pull_error, start_error
from controller.runtimes.logs import (
    EXIT_LINES,
    PART_BYTES,
    EndedLogs,
    LogMark,
    ended_log_part,
    last_lines,
    plain_lines,
    plain_tail,
)
from controller.state import Phase

log = logging.getLogger(__name__)


BUILT_HERE = "roundhouse/"
"""Prefix of the images that `make images` builds."""


def image_id(client: docker.APIClient, image: str) -> str | None:
    """Return the id (`sha256:...`) of the local image that a reference names now; None if there is none. Asks no
    registry. Blocks. Raises the errors of docker-py and requests."""
    details = _inspect(client, image)
    return None if details is None else str(details["Id"])


def image_environment(client: docker.APIClient, image: str) -> tuple[str, ...] | None:
    """Return the variables that a local image sets, as `KEY=value`; empty: it sets none. None: there is no such image
    here, so that it must be pulled or built first. Asks no registry. Blocks. Raises the errors of docker-py and
    requests."""
    details = _inspect(client, image)
    return None if details is None else tuple((details.get("Config") or {}).get("Env") or ())


def _inspect(client: docker.APIClient, image: str) -> Mapping[str, Any] | None:
    try:
        details: Mapping[str, Any] = client.inspect_image(image)  # type: ignore[no-untyped-call]
    except NotFound:
        return None
    return details


def is_built_here(image: str) -> bool:
    """Return whether an image is one that `make images` builds. It must not be pulled: no registry has it, and one of
    that name there would be a stranger's."""
    return image.startswith(BUILT_HERE)


def build_command(image: str) -> str:
    """Return the `make` command that builds an image for which `is_built_here` is true, which is not checked."""
    engine = re.match(rf"{BUILT_HERE}worker-(exllamav3|vllm)(?![\w-])", image)
    return "make images" if engine is None else f"make images ENGINES={engine[1]}"


def pull_image(client: docker.APIClient, image: str, stop_event: threading.Event) -> None:
    """Pull an image, by default its tag `latest`. Blocks, and returns when the image is there, however long that takes,
    or early and without an error at the first progress message after `stop_event` was set. Raises StartError if the
    daemon or the registry refuses, also in the middle of the pull; errors of requests if the daemon does not answer."""
    repository, tag = parse_repository_tag(image)
    try:
        for progress in client.pull(repository, tag=tag or "latest", stream=True, decode=True):
            if stop_event.is_set():
                return
            if "error" in progress:
                raise pull_error(str(progress["error"]), image)
    except APIError as error:
        raise pull_error(refused_error_of(error).message, image) from error
    except DockerException as error:  # from the credentials store
        raise pull_error(str(error), image) from error


_KIB = 2**10
_MIB = 2**20


def pids_of(client: docker.APIClient, container_id: str) -> list[int]:
    """Return the ids of a container's processes in the host's PID namespace. Empty if the container does not run, or if
    the daemon refuses for another reason. Blocks. Raises the errors of requests if the daemon does not answer."""
    return [pid for pid, _ in _list_processes(client, container_id)]


def container_host_mib(client: docker.APIClient, container_id: str) -> int | None:
    """Return the MiB of main memory that a container holds, with mapped model files but without other file cache.
    Blocks.

    None if the container does not run, or if the daemon does not report it; never 0. The value is that of the control
    group, which counts memory shared by its processes once. But it counts a file for whoever read it first, which may
    be a process outside, so the result is at least the memory (RSS) of the largest process. Raises the errors of
    requests if the daemon does not answer.
    """
    largest_rss = max((rss for _, rss in _list_processes(client, container_id)), default=0)
    try:
        stats: Mapping[str, Any] = client.stats(container_id, stream=False, one_shot=True)
    except APIError as error:
        log.debug("no figures of %s: %s", container_id, error)
        stats = {}
    return -(-max(largest_rss, mapped_bytes((stats.get("memory_stats") or {}).get("stats") or {})) // _MIB) or None


def mapped_bytes(stats: Mapping[str, int]) -> int:
    """Return the bytes that processes have mapped, by the `memory_stats.stats` of a control group (version 2 or 1); 0
    if they do not say."""
    if "anon" in stats:
        return stats["anon"] + stats.get("file_mapped", 0)
    return stats.get("total_rss", 0) + stats.get("total_mapped_file", 0)


def _list_processes(client: docker.APIClient, container_id: str) -> list[tuple[int, int]]:
    """Return the host's pid and the RSS in bytes of each process; empty if the container does not run."""
    try:
        # The daemon runs the host's ps, and returns the lines of the container's processes.
        process_table: Mapping[str, Any] = client.top(container_id, "-eo pid,rss")
    except APIError as error:
        log.debug("the processes of %s are not known: %s", container_id, error)
        return []
    return [(int(row[0]), int(row[1]) * _KIB) for row in process_table.get("Processes") or ()]


KILL_WAIT_S: Final = 20.0
"""Seconds to wait after SIGKILL. Long, because a process that waits for its GPU cannot end sooner."""
FIRST_POLL_S: Final = 0.05
MAX_POLL_S: Final = 0.5


async def stop_container(daemon: Daemon, container: Inspected, grace_s: float) -> None:
    """Stop an inspected container, and return when it has ended or is gone. It gets its stop signal (SIGTERM, unless
    its image names another one), and SIGKILL after `grace_s` seconds. The container is not removed. One that does not
    run is no error. Raises RuntimeUnavailableError if the container does not end within 20 s (`KILL_WAIT_S`) after
    SIGKILL, or if the daemon does not answer."""
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


Inspected = Mapping[str, Any]


def labels_of(container: Inspected) -> Mapping[str, str]:
    """Return the labels of an inspected container; empty if it has none."""
    return (container.get("Config") or {}).get("Labels") or {}


def own_containers(client: docker.APIClient, instance: str) -> list[Inspected]:
    """Return the inspection of every container of this instance, in any state, including helpers (the GPU probe is
    one). Containers that are removed meanwhile are left out. Blocks. Raises the errors of docker-py and requests."""
    containers: list[Inspected] = []
    for row in client.containers(all=True, filters={"label": own_filter(instance)}):
        with suppress(NotFound):  # removed since it was listed
            containers.append(client.inspect_container(row["Id"]))
    return containers


def find_replica(client: docker.APIClient, instance: str, name: str) -> Inspected | None:
    """Return the inspection of the replica's container of this name (or id). None if there is none, or if the container
    is no replica of this instance or has labels that cannot be read, of which a warning is logged. Blocks. Raises
    the errors of docker-py and requests."""
    container = inspect_container(client, name)
    if container is None:
        return None
    if not is_own_replica(container, instance):
        log.warning("container %s is not of this Roundhouse (%s): it is left alone", name, instance)
        return None
    return container


def inspect_container(client: docker.APIClient, name: str) -> Inspected | None:
    """Return the inspection of a container, of any instance, by its name or id (also the beginning of an id); None if
    there is none. Blocks. Raises the errors of docker-py and requests."""
    try:
        container: Inspected = client.inspect_container(name)
    except NotFound:
        return None
    return container


def is_own_replica(container: Inspected, instance: str) -> bool:
    """Return whether a container is a replica of this instance, with labels that this version can read."""
    labels = labels_of(container)
    if not is_own(labels, instance, REPLICA_ROLE):
        return False
    try:
        read_labels(labels)
    except UnreadableLabelsError:
        return False
    return True


def create_container(client: docker.APIClient, name: str, config: Mapping[str, Any]) -> str:
    """Create a container, without starting it, and return its id. Blocks. Raises the errors of docker-py and requests:
    APIError with status 409 if the name is taken."""
    response: Mapping[str, Any] = client.create_container_from_config(dict(config), name)  # type: ignore[no-untyped-call]
    return str(response["Id"])


def start_replica(
    client: docker.APIClient,
    instance: str,
    name: str,
    config: Mapping[str, Any],
    folders: Sequence[PurePosixPath] = (),
    files: Mapping[PurePosixPath, str] = MappingProxyType({}),
    further_network: str | None = None,
) -> None:
    """Create and start a replica's container. One that was already created is only started; one that was already
    started is left as it is. Blocks.

    `config` is that of `container_config`, `folders` and `files` are those of `Launch`. `further_network` names a
    network that the container joins besides that of `config`; None: none. Raises StartError if the daemon refuses to
    create or start it, or if the name is taken by a container that is no replica of this instance. A container whose
    start the daemon refused is removed again. Raises the other errors of docker-py and requests as they are."""
    container = _create_or_find(client, instance, name, config)
    if phase_of(container) is not Phase.CREATED:
        return
    container_id = str(container["Id"])
    uid, _, gid = str(container["Config"]["User"]).partition(":")
    try:
        if any(mount["Target"] == str(CACHE) for mount in config["HostConfig"]["Mounts"]):
            _make_cache_folders(client, container_id, cache_folder_archive(int(uid), int(gid or uid), folders, files))
        if further_network is not None and further_network not in container["NetworkSettings"]["Networks"]:
            client.connect_container_to_network(container_id, further_network)
        client.start(container_id)
    except APIError as error:
        refused_error = refused_error_of(error)
        with suppress(APIError):
            client.remove_container(container_id, v=True)
        raise start_error(refused_error.message, str(config["Image"])) from error


def _make_cache_folders(client: docker.APIClient, container_id: str, archive: bytes) -> None:
    """Create the folders of `archive` in the cache volume, which all containers of the instance share."""
    try:
        client.put_archive(container_id, str(CACHE), archive)
    except APIError as error:
        if "file exists" not in str(error.explanation):
            raise
        # Another start created the folder between the daemon's check and its mkdir (seen on 20.10). It exists now.
        client.put_archive(container_id, str(CACHE), archive)


def _create_or_find(client: docker.APIClient, instance: str, name: str, config: Mapping[str, Any]) -> Inspected:
    try:
        container_id = create_container(client, name, config)
    except APIError as error:
        if error.status_code != 409:
            raise start_error(refused_error_of(error).message, str(config["Image"])) from error
        return _find_by_name(client, instance, name, refused_error_of(error).message)
    container: Inspected = client.inspect_container(container_id)
    return container


def _find_by_name(client: docker.APIClient, instance: str, name: str, message: str) -> Inspected:
    container = inspect_container(client, name)
    if container is None:
        plain = f"the container {name} is just being removed"
        raise StartError(f"{plain} (Docker: {message})", plain=plain)
    if not is_own_replica(container, instance):
        raise StartError(
            f"the name {name} is taken by a container that is not of this Roundhouse: rename or remove that container"
        )
    return container


def remove_container(client: docker.APIClient, container_id: str) -> None:
    """Remove a container that has ended or was never started, with its anonymous volumes and its log. Does nothing if
    the container is gone or is being removed already. Blocks. Raises the errors of docker-py and requests: APIError
    with status 409 if it still runs. Does not check whose container it is: the caller must have found it by
    `find_replica` or `own_containers`."""
    try:
        client.remove_container(container_id, v=True)
    except APIError as error:
        if error.status_code == 404 or (error.status_code == 409 and "in progress" in str(error.explanation)):
            return
        raise


READ_LINES: Final = 400
"""Records that are read for a tail. A line may be several records, and a progress bar is many."""

_RECORD_BYTES: Final = 16 * 1024
"""Size of a record. The daemon splits longer lines into several records, and writes a time before each."""
_TIME: Final = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z) ")


def read_log(client: docker.APIClient, container_id: str, records: int = READ_LINES) -> bytes:
    """Return the last `records` records of a container's output, stdout and stderr as one, without times. Blocks. Empty
    if there are none, or if the daemon refuses, as for a container that is gone or being removed. Raises the errors of
    requests if the daemon does not answer."""
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
    it was given none, or `mark` alone has the position, because the clock was set back since that time."""
    count: int = 0
    """How many records with that time the client was given."""
    mark: LogMark = field(default_factory=LogMark)
    """The same position by content, for the kept log once the container is gone, and where `time` is empty."""

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
        """Return the Unix time for the daemon's `since` filter; None for a cursor without a time, which needs none. The
        result is some microseconds before `time`, since a float cannot hold all of its digits and the filter must not
        leave records out. So records before the position come too; `records_after` drops them."""
        moment = parse_time(f"{self.time[:26]}Z") if self.time else None
        return None if moment is None else moment - 1e-5

    def cursor_after(self, records: Sequence[LogRecord], earlier: Sequence[LogRecord] = ()) -> DockerLogCursor:
        """Return the position after these records, all of which must follow this position, oldest first. Without
        records, or if none has a time, return this position. `earlier`: those before this position, if it has no
        time."""
        known_records = (*earlier, *records)
        latest = max((each.time for each in records), default="") and max(each.time for each in known_records)
        if not latest:
            return self
        mark = self.mark.mark_after(b"".join(each.data for each in records))
        if not self.time and latest > max(each.time for each in records):
            return DockerLogCursor(mark=mark)
        count = sum(1 for each in known_records if each.time == latest)
        return DockerLogCursor(latest, count + (self.count if latest == self.time else 0), mark)

    def records_after(self, records: Sequence[LogRecord]) -> list[LogRecord]:
        """Return those of the records that follow this position, in their order. `records` must be in the order of the
        log, and contain every record with the position's time, or all if it has none; records without a time follow
        only a position without one."""
        if not self.time:
            missing_bytes = len(self.mark.rest_of(b"".join(each.data for each in records)))
            count = len(records)
            while count and missing_bytes > 0:
                count -= 1
                missing_bytes -= len(records[count].data)
            return list(records[count:])
        new_records, seen_count = [], 0
        for each in records:
            if each.time == self.time and seen_count < self.count:
                seen_count += 1
            elif each.time >= self.time:
                new_records.append(each)
        return new_records

    def is_ahead_of(self, records: Sequence[LogRecord]) -> bool:
        """Return whether the last of the records is of before this position's time: the clock was set back."""
        return bool(records) and "" < records[-1].time < self.time


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One line of a container's output, with its newline if it has one, as `parse_records` returns it. `time` empty:
    not known."""

    time: str
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
    position = log_cursor or DockerLogCursor()
    has_ended = phase_of(container) is Phase.EXITED

    def _read(**limits: Any) -> list[LogRecord]:
        data: bytes = client.logs(
            str(container["Id"]), stdout=True, stderr=True, stream=False, timestamps=True, **limits
        )
        return parse_records(data)

    try:
        # Without a cursor, read more records than lines: a long line is several, and the last one may be unfinished.
        records = _read(tail=2 * lines + 1) if log_cursor is None else _read(since=position.filter_since())
        new_records = position.records_after(records)
        if log_cursor is not None and not new_records and position.is_ahead_of(_read(tail=1)):
            position = replace(position, time="", count=0)
            records = _read()
            new_records = position.records_after(records)
    except APIError:  # it is being removed: the next call reads the rest from the kept log
        return None if log_cursor is None else LogPart((), cursor or "", running=True)
    total_bytes = sum(len(each.data) for each in new_records)
    part_records = _fitting_records(
        new_records, has_ended=has_ended, max_bytes=total_bytes if log_cursor is None else PART_BYTES
    )
    earlier = () if position.time or log_cursor is None else records[: len(records) - len(new_records)]
    text = b"".join(each.data for each in part_records)
    part_lines = last_lines(text[-PART_BYTES:], lines) if log_cursor is None else tuple(plain_lines(text[:PART_BYTES]))
    return LogPart(
        part_lines,
        str(position.cursor_after(part_records, earlier)),
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
