"""Recovery at the start of a gateway: takes over the streams in the files that an earlier process left."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from gateway.protocols.api_matrix import SERVING_OPTIONS
from gateway.streams.errors import gateway_restarted
from gateway.streams.interrupted import cut_torn_event, end_events, is_complete
from gateway.streams.registry import StreamRegistry
from gateway.streams.stream import ResumableStream, StreamState
from gateway.streams.stream_folder import KeptStream, StreamFolder, remove_file

logger = logging.getLogger(__name__)


class RecoveredStream(NamedTuple):
    """A stream of an earlier process that the registry has now."""

    stream: ResumableStream
    response_id: str | None
    """Id of the background response that the stream belongs to; None: it belongs to none."""


def recover_streams(
    folder: StreamFolder, registry: StreamRegistry, now: float, uptime: float
) -> Iterator[RecoveredStream]:
    """Add the streams in `folder` to `registry`, and yield each that was added.

    Iterate to the end: the work is done as the iterator advances. It locks the folder for this gateway until
    `StreamFolder.close`, and yields nothing if another gateway holds the lock or there is no folder.

    Streams that had ended keep their state. Interrupted ones get the error event `gateway_restarted`, in their files
    too, unless their last event was the final one. Not added, and their files removed: streams past their TTL, older
    ones of the same tenant and id, those of an unknown API, those for which there is no room, and unreadable ones
    (logged). `now`: Unix time in seconds. `uptime`: the same moment in monotonic seconds. Blocks on the disk. Raises
    OSError if the folder cannot be read.
    """
    kept_streams = sorted(folder.list_kept(), key=lambda each: _ended_at(each, now))
    newest = _find_newest(kept_streams)
    for kept in kept_streams:
        is_wanted = kept in newest and _ended_at(kept, now) + registry.ttl_s > now
        stream = _recover_stream(folder, registry, kept, now, uptime) if is_wanted else None
        if stream is None:
            remove_file(kept.path)
        else:
            yield RecoveredStream(stream, kept.header.response_id)


def _recover_stream(
    folder: StreamFolder, registry: StreamRegistry, kept: KeptStream, now: float, uptime: float
) -> ResumableStream | None:
    header = kept.header
    stream = ResumableStream(
        registry,
        header.tenant,
        header.id,
        model=header.model,
        path=header.path,
        request_id=header.request_id,
        now=header.began_at,
    )
    ring = stream.ring
    ring.first_offset = header.first_offset
    try:
        stream.state, path, events = _end_interrupted(folder, kept)
    except OSError as error:
        logger.error("%s cannot be read: %s", kept.path, error)  # noqa: TRY400
        return None
    ring.append(events)
    if ring.size > registry.ring_bytes:
        ring.drop_oldest(ring.size - registry.ring_bytes)
    stream.ended_at = _ended_at(kept, now)
    # A file from the future ended now.
    stream.kept_until = min(uptime, stream.ended_at + (uptime - now)) + registry.ttl_s
    stream.keep_in_file(folder.adopt_file(path, header))
    if not registry.recover_stream(stream):
        remove_file(path)
        return None
    return stream


def _end_interrupted(folder: StreamFolder, kept: KeptStream) -> tuple[StreamState, Path, bytes]:
    """Return the state of a kept stream, the path of its file, and its events. An interrupted stream is ended first, in
    its file too; a failure to write that is logged only.

    Raises:
        OSError: the file cannot be read.
    """
    events = kept.read_events()
    if kept.state is not StreamState.LIVE:
        return kept.state, kept.path, events
    api_path, events = kept.header.path, cut_torn_event(events)
    state, last_events = StreamState.DONE, b""
    if not is_complete(api_path, events):
        state = StreamState.CUT
        last_events = end_events(api_path, events, gateway_restarted(), kept.header.request_id)
    path = kept.path
    try:
        path = folder.end_interrupted(kept, len(events), last_events, state)
    except OSError as error:
        logger.error("%s cannot be ended: %s", kept.path, error)  # noqa: TRY400
    return state, path, events + last_events


def _find_newest(kept_streams: Sequence[KeptStream]) -> set[KeptStream]:
    """Return, for each tenant and id, the stream that began last: a process may have been killed between making a
    stream and removing the one that it replaces. Streams of unknown API paths are left out."""
    newest: dict[tuple[str, str], KeptStream] = {}
    for kept in sorted(kept_streams, key=lambda each: each.header.began_at):
        if kept.header.path in SERVING_OPTIONS:
            newest[kept.header.tenant, kept.header.id] = kept
    return set(newest.values())


def _ended_at(kept: KeptStream, now: float) -> float:
    """Return the Unix time in seconds of the stream's end. An interrupted stream ends now, so that its TTL begins when
    it can be read again."""
    return now if kept.state is StreamState.LIVE else kept.changed_at
