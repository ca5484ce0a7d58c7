"""Fetching one range of a file into its place in the partial file, again and again from where it broke off."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Final, Protocol

from common.network.errors import InterruptedConnectionError
from controller.schema.errors import RoundhouseError
from transfers.fetch.segments import Segment
from transfers.network.client import SourceClient
from transfers.network.failures import FAILURES, describe_failure
from transfers.network.retry import RetryPolicy
from transfers.sources.base import SourceFile
from transfers.sources.range_request import AskAgainError, RangeAnswer, read_range

ENOUGH_BYTES: Final = 256 * 1024
"""A connection that brought as many bytes counts as a success, however it ended."""


class StoppedError(Exception):
    """The download was stopped by this program: its stop event was set, or its connections were interrupted."""


class IgnoredRangeError(AskAgainError):
    """The source sends the whole file instead of a range. Asking again does not help."""


class FetchProgress(Protocol):
    """Receives the progress of a fetch. Methods are called from several threads, often, and must not block."""

    def set_done(self, file: SourceFile, done_bytes: int) -> None:
        """Note that `done_bytes` bytes of the file are here in all. Replaces the number before."""

    def add_done(self, file: SourceFile, added_bytes: int) -> None:
        """Note that `added_bytes` more bytes of the file are here."""

    def set_waiting(self, reason: str | None) -> None:
        """Note that nothing comes just now, and why. None: the fetch goes on."""

    def set_verifying(self, file: SourceFile) -> None:
        """Note that all bytes of the file are here, and are compared with the source's hash now."""


@dataclass(frozen=True, slots=True)
class FileContext:
    """What the fetches of all segments of one file share. It closes neither `descriptor` nor `client`."""

    client: SourceClient
    file: SourceFile
    url: str
    descriptor: int
    """Of the partial file, open for writing."""
    policy: RetryPolicy
    progress: FetchProgress
    stopped: threading.Event

    def check_stop(self) -> None:
        """Raise StoppedError after `stopped` was set."""
        if self.stopped.is_set():
            raise StoppedError


class SegmentFetch:
    """Fetches one segment of a file into its place in the partial file. Use it once."""

    def __init__(self, context: FileContext, segment: Segment, *, restarts: bool = False) -> None:
        """`restarts`: the source ignores ranges, and the segment is the whole file, so that each new try begins with
        the first byte."""
        self._context = context
        self._start, self._end = segment
        self._position = self._start
        self._restarts = restarts

    def run(self) -> None:
        """Fetch the segment, and write its bytes into their place in the partial file, which is not flushed. A
        connection that breaks off is made again, and the fetch goes on from there, as often as the policy allows.
        Blocks. Call once.

        Raises:
            IgnoredRangeError: the source sends the whole file instead of the range. Bytes that came before stay.
            RoundhouseError: `source_not_found`, `source_forbidden`, `source_address_refused`, `source_unavailable` or
                `source_mismatch`.
            StoppedError: `stopped` was set, or the client interrupted.
            OSError: the partial file cannot be written.
        """
        failures = 0
        while self._position < self._end:
            self._context.check_stop()
            before = self._position
            try:
                self._receive()
            except IgnoredRangeError:
                raise
            except AskAgainError as error:
                failures = 1 if self._position - before >= ENOUGH_BYTES else failures + 1
                self._pause(error, failures)
                if self._restarts:
                    self._position = self._start
                    self._context.progress.set_done(self._context.file, 0)
            else:
                failures = 0

    def _receive(self) -> None:
        context = self._context
        try:
            with read_range(context.client, context.url, self._position, self._end) as answer:
                self._check_answer(answer)
                context.progress.set_waiting(None)
                for chunk in answer.chunks:
                    context.check_stop()
                    if self._position + len(chunk) > answer.end:
                        raise AskAgainError("the source sends more bytes than it announced")
                    self._write(chunk)
                if self._position < answer.end:
                    raise AskAgainError("the source ended the answer early")
        except InterruptedConnectionError:
            raise StoppedError from None
        except FAILURES as error:
            raise describe_failure(error, "the source") from None

    def _check_answer(self, answer: RangeAnswer) -> None:
        file = self._context.file
        for hop in answer.hops:
            commit = hop.headers.get("x-repo-commit")
            if file.commit is not None and commit is not None and commit != file.commit:
                raise RoundhouseError("source_mismatch", f"{file.path}: the source answers commit {commit!r:.50}.")
            etag = hop.headers.get("x-linked-etag", "").strip('"')
            if file.sha256 is not None and len(etag) == len(file.sha256) and etag != file.sha256:
                raise RoundhouseError("source_mismatch", f"{file.path}: the source has another file, {etag!r:.70}.")
        if answer.total != file.size:
            raise RoundhouseError(
                "source_mismatch", f"{file.path}: the source has {answer.total} bytes, and not {file.size}."
            )
        if answer.start != self._position or answer.end > self._end:
            raise IgnoredRangeError("the source ignores which range is asked for")

    def _write(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        while view:
            written = os.pwrite(self._context.descriptor, view, self._position)
            self._position += written
            self._context.progress.add_done(self._context.file, written)
            view = view[written:]

    def _pause(self, error: AskAgainError, failures: int) -> None:
        context = self._context
        delay = context.policy.choose_delay(failures, error.asked_s)
        if delay is None:
            raise RoundhouseError(
                "source_unavailable", f"{context.file.path}: {error}.", retry_after_s=error.asked_s
            ) from None
        context.progress.set_waiting(str(error))
        if context.stopped.wait(delay):
            raise StoppedError
