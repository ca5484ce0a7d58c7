"""What a search finds, what a reference resolves to, and some bytes of its files, before anything is downloaded."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from typing import Final

from common.network.transport import InterruptedConnectionError
from contract.downloads import (
    LONGEST_RANGE,
    FoundModels,
    FoundRepository,
    Inspection,
    ModelChoice,
    PlacedFile,
    RemoteFile,
    RepositoryFacts,
    SearchOrder,
)
from contract.errors import RoundhouseError
from contract.model_reference import ModelReference
from transfers.downloads.job import choose_folder, has_kept_state
from transfers.models_folder import ModelsFolder
from transfers.network import FAILURES, NetworkOptions, SourceClient, describe_failure
from transfers.sources.base import AskAgainError, Resolution, SourceFile, read_range
from transfers.sources.source_set import SourceSet

LONGEST_WAIT_S: Final = 10.0
"""Seconds that an inspection waits in all where a source asks to wait; somebody waits for its answer."""
KEPT_S: Final = 60.0
"""Seconds for which the answer of a source is used for the ranges of its files."""
_MOST_KEPT: Final = 32
SEARCH_S: Final = 40.0
"""Seconds after which a search answers without what the hub has not said yet."""
PARALLEL: Final = 5
"""Repositories of one search that the hub is asked about at the same time."""
_TAGS: Final = ("gguf", "safetensors")
"""Tags of the hub that a search looks for: what is in neither format runs code when it is loaded, or no engine loads
it."""


class Inspector:
    """Asks sources what there is and what references are now, and reads parts of their files, without a download. What
    a source said is kept for `KEPT_S`, for `read_range`. Safe for threads."""

    def __init__(
        self,
        sources: SourceSet,
        folder: ModelsFolder,
        network: NetworkOptions,
        list_placed: Callable[[], Sequence[PlacedFile]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`list_placed`: returns the files that all downloads have put into place. `clock`: returns seconds, and never
        goes back."""
        self._sources = sources
        self._folder = folder
        self._network = network
        self._list_placed = list_placed
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[float, Resolution]] = {}

    def inspect(self, reference: ModelReference, *, include_pickle: bool) -> Inspection:
        """Ask the source anew what the reference is now, and compare its files with the models folder by size and time.
        `include_pickle`: whether weights in pickle files are taken, too. Blocks, for some minutes at most. Raises
        RoundhouseError `source_not_found`, `source_forbidden`, `source_address_refused`, `source_unavailable` or
        `source_mismatch`; and OSError if the models folder cannot be read."""
        placed = self._list_placed()
        resolution = choose_folder(self._resolve(reference, include_pickle=include_pickle), placed)
        known = {each.path: each for each in placed}
        files = [self._describe(resolution, file, known) for file in resolution.files]
        return Inspection(
            reference=resolution.reference,
            pinned=resolution.pinned,
            revision=resolution.revision,
            files=files,
            main=resolution.main,
            projector=resolution.projector_target,
            total_bytes=sum(each.size for each in files),
            missing_bytes=sum(each.size for each in files if not each.is_present),
            free_bytes=self._folder.measure_free(),
        )

    def search(self, order: SearchOrder) -> FoundModels:
        """Search the hub, and return the repositories that have a model, with their models. One whose files the hub
        does not list within `SEARCH_S` says why. Blocks, for a minute at most. Raises RoundhouseError
        `source_forbidden`, `source_address_refused`, `source_unavailable` or `source_mismatch` where the hub does not
        search."""
        wait = _Patience(LONGEST_WAIT_S).wait
        ends_at = time.monotonic() + SEARCH_S
        threads = ThreadPoolExecutor(PARALLEL, "search")
        try:
            gguf, safetensors = (
                threads.submit(self._sources.hub.search, order.words, tag, order.limit, wait=wait) for tag in _TAGS
            )
            found_gguf = gguf.result(SEARCH_S)
            facts = choose_found(found_gguf, safetensors.result(max(0.0, ends_at - time.monotonic())), order.limit)
            asked = [
                (each, threads.submit(self._sources.hub.list_choices, each.repository, wait=wait)) for each in facts
            ]
            wait_for_futures([future for _, future in asked], max(0.0, ends_at - time.monotonic()))
            found = [_build_found(each, future) for each, future in asked]
        except TimeoutError:
            raise RoundhouseError("source_unavailable", f"The hub did not answer within {SEARCH_S:g} s.") from None
        except InterruptedConnectionError:
            raise _ending() from None
        finally:
            # What is not answered yet ends by its own limits.
            threads.shutdown(wait=False, cancel_futures=True)
        return FoundModels(repositories=[each for each in found if each.choices or each.reason is not None])

    def read_range(self, reference: ModelReference, path: str, start: int, length: int) -> bytes:
        """Return up to `length` bytes of the file `path` at the source, from the byte `start` on; fewer, or none, at
        the end of the file. `path` is the one at the source. What the source said of the reference is used for
        `KEPT_S`. Blocks, for some minutes at most. Raises RoundhouseError `source_not_found` (also if the source has
        no such file), `source_forbidden`, `source_address_refused`, `source_unavailable` or `source_mismatch`."""
        resolution = self._find_kept(str(reference)) or self._resolve(reference, include_pickle=True)
        file = next((each for each in resolution.files if each.path == path), None)
        if file is None:
            raise RoundhouseError("source_not_found", f"{reference} has no file {path!r:.200}.", param="path")
        end = min(start + length, file.size)
        if start >= end:
            return b""
        return _read_local(file, start, end) if file.local_path is not None else self._read_remote(file, start, end)

    def _describe(self, resolution: Resolution, file: SourceFile, known: dict[str, PlacedFile]) -> RemoteFile:
        target = resolution.target_of(file)
        placed = known.get(target)
        is_same = placed is not None and placed.size == file.size and file.sha256 in (None, placed.sha256)
        return RemoteFile(
            path=file.path,
            target=target,
            size=file.size,
            sha256=file.sha256,
            is_present=is_same and placed is not None and has_kept_state(self._folder, placed),
        )

    def _resolve(self, reference: ModelReference, *, include_pickle: bool) -> Resolution:
        wait = _Patience(LONGEST_WAIT_S).wait
        try:
            resolution = self._sources.resolve(reference, include_pickle=include_pickle, wait=wait)
        except InterruptedConnectionError:
            raise _ending() from None
        now = self._clock()
        with self._lock:
            self._kept = {text: kept for text, kept in self._kept.items() if now - kept[0] < KEPT_S}
            while len(self._kept) >= _MOST_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[resolution.reference] = self._kept[resolution.pinned] = now, resolution
        return resolution

    def _find_kept(self, reference: str) -> Resolution | None:
        with self._lock:
            at, resolution = self._kept.get(reference, (0.0, None))
        return resolution if resolution is not None and self._clock() - at < KEPT_S else None

    def _read_remote(self, file: SourceFile, start: int, end: int) -> bytes:
        assert file.url is not None
        client = SourceClient(self._network)
        try:
            with read_range(client, file.url, start, end) as answer:
                if answer.total != file.size:
                    raise RoundhouseError(
                        "source_mismatch", f"{file.path}: the source has {answer.total} bytes, and not {file.size}."
                    )
                return _collect(answer.chunks, start - answer.start, end - start, self._network.answer_s)
        except AskAgainError as error:
            raise RoundhouseError("source_unavailable", f"{file.path}: {error}.", retry_after_s=error.asked_s) from None
        except InterruptedConnectionError:
            raise _ending() from None
        except FAILURES as error:
            raise describe_failure(error, "the source") from None
        finally:
            client.close()


def choose_found(
    gguf: Sequence[RepositoryFacts], safetensors: Sequence[RepositoryFacts], limit: int
) -> list[RepositoryFacts]:
    """Return up to `limit` repositories of two lists, the most downloaded first, each once: half of each list, and more
    of one where the other has fewer. Models in safetensors are downloaded so much more often that they alone would
    fill the answer."""
    others = [each for each in safetensors if each.repository not in {known.repository for known in gguf}]
    taken = min(len(others), max(limit // 2, limit - len(gguf)))
    chosen = [*gguf[: limit - taken], *others[:taken]]
    return sorted(chosen, key=lambda each: -(each.downloads or 0))


def _build_found(facts: RepositoryFacts, future: Future[tuple[list[ModelChoice], int]]) -> FoundRepository:
    choices: list[ModelChoice] = []
    left_out, reason = 0, None
    try:
        choices, left_out = future.result(timeout=0)
    except TimeoutError:
        reason = "The hub has not listed its files in time."
    except RoundhouseError as error:
        reason = error.message
    return FoundRepository(**{**dict(facts), "left_out": left_out, "reason": reason}, choices=choices)


class _Patience:
    """Sleeps between tries, but not for longer than somebody waits."""

    def __init__(self, seconds: float) -> None:
        self._left_s = seconds

    def wait(self, seconds: float) -> None:
        """Sleep. Raises RoundhouseError `source_unavailable` where it would take too long."""
        if seconds > self._left_s:
            raise RoundhouseError(
                "source_unavailable", f"The source is busy, and asks to wait {seconds:.0f} s.", retry_after_s=seconds
            )
        self._left_s -= seconds
        time.sleep(seconds)


def _ending() -> RoundhouseError:
    return RoundhouseError("source_unavailable", "Transfers ends; ask again when it has started anew.")


def _collect(chunks: Iterator[bytes], skipped: int, length: int, within_s: float) -> bytes:
    """Return `length` bytes after `skipped` ones, of a source that ignores ranges. Raises AskAgainError where fewer
    come, where they take longer than `within_s`, or where too much would have to be skipped."""
    if skipped > LONGEST_RANGE:
        raise AskAgainError("the source gives no parts of files")
    found = bytearray()
    ends_at = time.monotonic() + within_s
    for chunk in chunks:
        if time.monotonic() > ends_at:
            raise AskAgainError(f"the answer is not complete after {within_s:g} s", is_answer=False)
        if skipped >= len(chunk):
            skipped -= len(chunk)
            continue
        found += chunk[skipped:]
        skipped = 0
        if len(found) >= length:
            return bytes(found[:length])
    raise AskAgainError("the source ended the answer early")


def _read_local(file: SourceFile, start: int, end: int) -> bytes:
    assert file.local_path is not None
    try:
        with file.local_path.open("rb") as source:
            return os.pread(source.fileno(), end - start, start)
    except OSError as error:
        raise RoundhouseError("source_not_found", f"{file.local_path}: {error.strerror}.") from None
