"""What a source of models is, and how a range of bytes is asked of one."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeGuard

import httpx2

from contract.errors import RoundhouseError
from transfers.network import SourceClient, parse_retry_after

LARGEST_FILE: Final = 2**50
"""Bytes of a file that a source may name."""


def is_file_size(size: object) -> TypeGuard[int]:
    """Return whether what a source names is the size of a file: an integer from 0 to `LARGEST_FILE`."""
    return type(size) is int and 0 <= size <= LARGEST_FILE


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file as its source lists it. It has a `url` or a `local_path`, and at least one hash unless it is local."""

    path: str
    """Path at the source, without `.` and `..`."""
    size: int
    """Bytes."""
    sha256: str | None = None
    git_sha1: str | None = None
    """Id of the file as a git object; None: the source names none."""
    url: str | None = None
    local_path: Path | None = None
    mirrors: tuple[str, ...] = ()
    """Further addresses, of hosts that may have the file or a part of it, and are asked for each range before `url`."""
    mtime_ns: int | None = None
    """Time of the last change that the file gets; None: that of its coming."""
    commit: str | None = None
    """Commit that the source must name in its answers, where it names one; None: any."""

    @property
    def identity(self) -> str:
        """Text that is the same for the same content, so that a later fetch may go on with the bytes that an earlier
        one brought."""
        return f"{self.size} {self.sha256 or self.git_sha1 or self.local_path}"


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a reference resolves to: its present revision, the files at the source, and the folder that they go into."""

    reference: str
    """The reference in its canonical form."""
    pinned: str
    """The same with the revision that it is now."""
    revision: str | None
    """Commit or digest; None: the source has none."""
    files: tuple[SourceFile, ...]
    """The files, the main one first; at least one."""
    folder: str
    """Folder below the models folder; empty: that folder itself."""
    is_folder: bool = False
    """Whether the model is the folder, and not its first file."""
    projector: str | None = None
    """Path at the source of the multimodal projector; None: none."""

    def target_of(self, file: SourceFile) -> str:
        """Return the path below the models folder of one of `files`."""
        return self._place(file.path)

    def _place(self, path: str) -> str:
        return f"{self.folder}/{path}" if self.folder else path

    @property
    def main(self) -> str:
        """Path below the models folder that a definition names: the folder if `is_folder`, else the first file."""
        return self.folder if self.is_folder else self.target_of(self.files[0])

    @property
    def projector_target(self) -> str | None:
        """Path of the projector below the models folder; None: there is none."""
        return None if self.projector is None else self._place(self.projector)


_CONTENT_RANGE: Final = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})", re.ASCII)
_EMPTY_RANGE: Final = re.compile(r"bytes \*/(\d{1,18})", re.ASCII)
_AGAIN: Final = frozenset({408, 425, 429})
_CHUNK: Final = 256 * 1024


class AskAgainError(Exception):
    """The range did not come; another try may bring it. The message says why."""

    def __init__(self, message: str, *, asked_s: float | None = None, is_answer: bool = True) -> None:
        """`asked_s`: seconds that the source asks to wait; None: it asks for nothing. `is_answer`: whether the source
        answered at all."""
        super().__init__(message)
        self.asked_s = asked_s
        self.is_answer = is_answer


@dataclass(frozen=True, slots=True)
class RangeAnswer:
    """The beginning of an answer whose headers are right. `chunks` may still end early, or bring more bytes than up to
    `end`."""

    start: int
    """First byte that comes: the one asked for, or 0 where the source ignores ranges."""
    end: int
    """Byte after the last one that comes."""
    total: int
    """Size of the file."""
    hops: tuple[httpx2.Response, ...]
    """The redirects before the answer."""
    chunks: Iterator[bytes]


@contextmanager
def read_range(client: SourceClient, url: str, start: int, end: int) -> Iterator[RangeAnswer]:
    """Return a context manager that asks for the bytes from `start` up to, without, `end`, and yields the answer, whose
    headers were checked. Errors of the connection while `chunks` is read within the block raise AskAgainError, too.
    Blocks.

    Raises:
        AskAgainError: the connection failed, or the source is busy or has an error of its own.
        RoundhouseError: `source_not_found`, `source_forbidden`, `source_unavailable` or `source_mismatch`: another try
            changes nothing.
        AddressRefusedError: the address, or one that is redirected to, must not be connected to.
        InterruptedConnectionError: the client was interrupted.
        httpx2.TooManyRedirects, httpx2.InvalidURL: the redirects lead nowhere.
    """
    try:
        with client.open(url, {"range": f"bytes={start}-{end - 1}"}) as (response, hops):
            check_status(response, hops)
            yield _read_head(response, hops, start, end)
    except httpx2.TooManyRedirects:
        raise
    except httpx2.HTTPError as error:
        raise AskAgainError(str(error) or type(error).__name__, is_answer=False) from None


def check_status(response: httpx2.Response, hops: Sequence[httpx2.Response]) -> None:
    """Return if the status of an answer is 200, 206 or 416. Raises AskAgainError if another try may help (the source is
    busy or fails, or refuses behind a redirect), else RoundhouseError `source_forbidden`, `source_not_found` or
    `source_unavailable`. `hops`: the redirects before the answer."""
    status, host = response.status_code, response.url.host
    if status in (200, 206, 416):
        return
    if status in _AGAIN or status >= 500:
        asked = parse_retry_after(response.headers.get("retry-after"), time.time())
        wish = "" if asked is None else f" and asks to wait {asked:.0f} s"
        raise AskAgainError(f"{host} answers status {status}{wish}", asked_s=asked)
    if status in (401, 403):
        if hops:
            # The address behind a redirect is signed, and valid for some minutes.
            raise AskAgainError(f"{host} answers status {status} behind a redirect")
        raise RoundhouseError("source_forbidden", f"{host} does not give the file to this user (status {status}).")
    if status in (404, 410):
        raise RoundhouseError("source_not_found", f"{host} has no such file (status {status}).")
    raise RoundhouseError("source_unavailable", f"{host} answers status {status}.")


def _read_head(response: httpx2.Response, hops: Sequence[httpx2.Response], start: int, end: int) -> RangeAnswer:
    host, headers = response.url.host, response.headers
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise RoundhouseError("source_mismatch", f"{host} encodes the file ({headers['content-encoding']:.40}).")
    length = _parse_length(headers.get("content-length"), host)
    content_range = headers.get("content-range", "")
    if response.status_code == 416:
        empty = _EMPTY_RANGE.fullmatch(content_range)
        if empty is None or start < int(empty[1]):
            raise RoundhouseError("source_mismatch", f"{host} refuses a range of the file (status 416).")
        return RangeAnswer(start, start, int(empty[1]), tuple(hops), iter(()))
    if response.status_code == 200:
        if length is None:
            raise RoundhouseError("source_mismatch", f"{host} names no size of the file.")
        return RangeAnswer(0, length, length, tuple(hops), response.iter_raw(_CHUNK))
    found = _CONTENT_RANGE.fullmatch(content_range)
    if found is None:
        raise AskAgainError(f"{host} answers a range that cannot be read: {content_range!r:.60}")
    first, last, total = (int(each) for each in found.groups())
    if first != start or not start <= last < min(end, total):
        raise AskAgainError(f"{host} answers another range than was asked for: {content_range!r:.60}")
    if length is not None and length != last + 1 - first:
        raise AskAgainError(f"{host} announces {length} bytes for a range of {last + 1 - first}")
    return RangeAnswer(first, last + 1, total, tuple(hops), response.iter_raw(_CHUNK))


def _parse_length(text: str | None, host: str) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise AskAgainError(f"{host} announces a length that cannot be read: {text!r:.40}")
    return int(text)
