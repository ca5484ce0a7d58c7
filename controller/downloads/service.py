"""What the controller does about downloads: looks, orders, cancels, knows how far each is, and has the files of
models' sources downloaded for the reconciler.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, Protocol
from weakref import WeakValueDictionary

from pydantic import JsonValue

from contract.downloads import FINAL_STATES, Download, DownloadOrder, Inspection, Removal, SearchOrder
from contract.errors import RoundhouseError
from contract.model_files import (
    InspectedModel,
    MemoryForecast,
    ModelDownloadOrder,
    ModelSearch,
    OfferedModel,
    OfferedRepository,
    OrderedDownload,
)
from contract.model_reference import InvalidReferenceError, ModelReference, parse_reference, suggest_model_name
from controller.artifacts.model_roots import ModelRoots
from controller.downloads.forecast import (
    ModelPaths,
    choose_gpu_count,
    forecast_memory,
    forecast_size,
    measure_rooms,
    read_remote_artifacts,
)
from controller.journal import EventLog
from controller.redaction import mask_text
from controller.round_events import NewEntry
from controller.settings import DownloadPermission
from controller.state import ObservedState
from controller.transfers_client import TransfersClient

log = logging.getLogger(__name__)


def build_fields(inspection: Inspection, forecast: MemoryForecast) -> dict[str, JsonValue]:
    """Return the fields of a definition that serves the inspected model: the pinned source, whose files take the place
    of paths; the backend of the forecast, if one is known; and the number of GPUs, if the model fits on any. Without
    a backend the fields are no valid definition."""
    fields: dict[str, JsonValue] = {"source": inspection.pinned}
    if forecast.backend is not None:
        fields["backend"] = forecast.backend
    if (gpus := choose_gpu_count(forecast)) > 0:
        fields["gpus"] = gpus
    return fields


_STARTED: Final = "started"
_CONTROLLER: Final = "controller"


class DownloadLog:
    """Records in the journal what becomes of downloads, each step once, also over restarts of the controller."""

    def __init__(self, journal: EventLog, clock: Callable[[], float]) -> None:
        """Read from the journal which starts and ends of downloads it has. `clock` returns Unix time in seconds."""
        self._journal = journal
        self._clock = clock
        self._told: dict[str, str] = journal.find_last_details("download", "id", "step")
        """Id of a download to the last step that the journal has."""

    def note_order(self, download: Download, actor: str) -> None:
        """Record that `actor` ordered a download, and that it thereby began. Secrets in its reference are masked. A
        failed write raises nothing."""
        self._record(download, _STARTED, actor, f"download of {download.reference} started by {actor}")

    def note_download(self, download: Download) -> None:
        """Record the start of a download that has not ended, or the end of one that has, unless the journal has that
        entry. An end is left out if the journal does not have the start. A failed write raises nothing."""
        told = self._told.get(download.id)
        if download.state not in FINAL_STATES:
            if told != _STARTED:
                self._record(download, _STARTED, _CONTROLLER, f"download of {download.reference} started")
        elif told == _STARTED:
            self._record(download, download.state, _CONTROLLER, _end_words(download))

    def note_cancellation(self, download: Download, actor: str) -> None:
        """Record that `actor` cancelled a download. Nothing is recorded if its state is not `cancelled`, or if the
        journal does not have its start or already has its end. A failed write raises nothing."""
        if download.state == "cancelled" and self._told.get(download.id) == _STARTED:
            self._record(download, "cancelled", actor, f"download of {download.reference} cancelled by {actor}")

    def note_removal(self, name: str, removal: Removal, actor: str) -> None:
        """Record that `actor` removed files of downloads from the models folder. `name`: the path or the reference that
        was to be removed. A failed write raises nothing."""
        count = len(removal.removed)
        files, mib = "1 file" if count == 1 else f"{count} files", removal.freed_bytes / 2**20
        message = f"{name}: {files} removed by {actor}, {mib:.1f} MiB freed"
        details: dict[str, JsonValue] = {"step": "removed", "removed": list(removal.removed)}
        self._append(actor, message, details)

    def _record(self, download: Download, step: str, actor: str, message: str) -> None:
        self._told[download.id] = step
        details: dict[str, JsonValue] = {
            "id": download.id,
            "step": step,
            "reference": mask_text(download.reference),
            "pinned": None if download.pinned is None else mask_text(download.pinned),
            "total_bytes": download.total_bytes,
        }
        if download.error is not None:
            details["code"] = download.error.code
        self._append(actor, message, details)

    def _append(self, actor: str, message: str, details: dict[str, JsonValue]) -> None:
        entry = NewEntry("download", actor, mask_text(message), None, details)
        self._journal.record_entries([entry], self._clock())


def _end_words(download: Download) -> str:
    if download.state == "failed":
        reason = download.error.message if download.error is not None else "no reason is known"
        return f"download of {download.reference} failed: {reason}"
    return f"download of {download.reference} {download.state}"


FORECAST_S: Final = 60.0
"""Seconds for the heads of files, after which a forecast is not known."""
INSPECTION_KEPT_S: Final = 60.0
"""Seconds for which an inspection counts for an order of the same."""
_MOST_KEPT: Final = 32
FIRST_PAUSE_S: Final = 0.5
"""Seconds before the first try to follow the downloads again."""
LONGEST_PAUSE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class _Seen:
    download: Download
    version: int
    """Counter of changes at which it was seen so."""


class DownloadService:
    """The downloads of one controller, made by `transfers`. Every method that asks `transfers` raises what
    `TransfersClient` raises, and `downloads_disabled` in place of `transfers_unreachable` where downloads are not
    allowed, so that nobody looks for a program that is not meant to run. Run `follow_transfers` in a task of its own:
    without it, only these methods learn how far downloads are."""

    def __init__(
        self,
        transfers: TransfersClient,
        *,
        get_permission: Callable[[], DownloadPermission],
        get_observed: Callable[[], ObservedState | None],
        roots: ModelRoots,
        download_log: DownloadLog,
        clock: Callable[[], float],
    ) -> None:
        """`get_permission` says whether downloads are allowed now. `get_observed` returns the last observation (None:
        none yet). `roots`: the models folders, absolute. `clock`: a time in seconds, for the age of inspections."""
        self._transfers = transfers
        self._get_permission = get_permission
        self._get_observed = get_observed
        self._roots = roots
        self._log = download_log
        self._clock = clock
        self._seen: dict[str, _Seen] = {}
        self._version = 0
        self._changed = asyncio.Event()
        self._inspected: dict[DownloadOrder, tuple[float, InspectedModel]] = {}

    @property
    def known_downloads(self) -> Mapping[str, Download]:
        """The downloads as `follow_transfers` or a method last saw them, by id. `transfers` is not asked; while it does
        not answer, they are stale."""
        return {download: seen.download for download, seen in self._seen.items()}

    @property
    def permission(self) -> DownloadPermission:
        """Whether downloads are allowed now."""
        return self._get_permission()

    def check_allowed(self) -> None:
        """Raise RoundhouseError `downloads_disabled` where downloads are not allowed."""
        permission = self._get_permission()
        if not permission.is_allowed:
            raise RoundhouseError("downloads_disabled", f"Models are not downloaded here: {permission.reason}.")

    async def search_models(self, order: SearchOrder) -> ModelSearch:
        """Return models of the hub whose names have the order's words, and about where each fits. Whether one is here
        is not looked up. Raises RoundhouseError `downloads_disabled`, `transfers_unreachable`, or an error that
        `transfers` answers with (`source_…`)."""
        self.check_allowed()
        found = await self._transfers.search(order)
        observed = self._get_observed()
        rooms = [] if observed is None else measure_rooms(observed)
        why_no_gpus = "the GPUs cannot be read now" if observed is not None and observed.gpus is None else None
        return ModelSearch(
            repositories=[
                OfferedRepository(
                    **each.model_dump(exclude={"choices"}),
                    choices=[
                        OfferedModel(**dict(choice), forecast=forecast_size(choice.size, rooms, why_no_gpus))
                        for choice in each.choices
                    ],
                )
                for each in found.repositories
            ]
        )

    async def inspect_model(self, order: ModelDownloadOrder) -> InspectedModel:
        """Return what a reference resolves to now, the memory that its model will take, and where it fits. Heads of
        files that cannot be read within 60 s raise nothing: the forecast then says that the memory is not known. Raises
        RoundhouseError `downloads_disabled`, `reference_invalid`, `transfers_unreachable`, or an error that `transfers`
        answers with (`source_…`, `models_…`)."""
        self.check_allowed()
        reference = _parse(order.reference)
        inspection = await self._transfers.inspect(_plain(order, reference))
        forecast = await self._forecast(inspection, order.backend)
        fields = build_fields(inspection, forecast)
        name = suggest_model_name(reference)
        found = InspectedModel(name=name, inspection=inspection, forecast=forecast, fields=fields)
        self._keep_inspection(order, found)
        return found

    async def order_download(self, order: ModelDownloadOrder, *, actor: str) -> tuple[OrderedDownload, bool]:
        """Begin a download, and return it with the memory that the model will take, and whether it is a new run. An
        order for a reference whose download is under way returns that download. A new run is recorded in the journal as
        ordered by `actor`. The model is inspected first, unless the same order was inspected in the last 60 s. Raises
        what `inspect_model` raises. Only after `transfers_unreachable` may the download have begun."""
        self.check_allowed()
        at, inspected = self._inspected.get(order, (0.0, None))
        if inspected is None or not 0 <= self._clock() - at < INSPECTION_KEPT_S:
            inspected = await self.inspect_model(order)
        download, is_new = await self._transfers.order_download(_plain(order, _parse(order.reference)))
        if is_new:
            self._log.note_order(download, actor)
        self._take(download, is_ordered=True)
        fields = dict(download) | {"inspection": inspected.inspection, "forecast": inspected.forecast}
        return OrderedDownload(**fields), is_new

    async def order_plain(self, reference: str, *, actor: str) -> tuple[Download, bool]:
        """Begin a download for `actor` without a look at the memory that the model will take, and return it, or the one
        of `reference` (a model reference as text) that is under way, and whether it began now. Raises RoundhouseError
        `downloads_disabled`, `reference_invalid`, `transfers_unreachable`, after which it may have begun, or another
        code that `transfers` answers with."""
        self.check_allowed()
        download, is_new = await self._transfers.order_download(DownloadOrder(reference=str(_parse(reference))))
        if is_new:
            self._log.note_order(download, actor)
        self._take(download, is_ordered=True)
        return download, is_new

    async def list_downloads(self) -> list[Download]:
        """Return all downloads as they are now, newest first. Raises RoundhouseError where `transfers` does not answer:
        `downloads_disabled` if downloads are not allowed, else `transfers_unreachable`; or an error that `transfers`
        answers with (`models_folder_failed`)."""
        with _Explained(self.check_allowed):
            downloads = await self._transfers.list_downloads()
        listed = {each.id for each in downloads}
        self._seen = {download: seen for download, seen in self._seen.items() if download in listed}
        for each in reversed(downloads):
            self._take(each)
        return downloads

    async def get_download(self, download: str) -> Download:
        """Return a download, by its id, as it is now. Raises RoundhouseError `download_not_found`, and where
        `transfers` does not answer `downloads_disabled` if downloads are not allowed, else `transfers_unreachable`."""
        with _Explained(self.check_allowed):
            found = await self._transfers.get_download(download)
        self._take(found)
        return found

    async def cancel_download(self, download: str, *, actor: str) -> Download:
        """End a download, by its id, record that `actor` did so, and return the download. One that has ended stays as
        it is. Raises RoundhouseError `download_not_found`, `downloads_disabled` and `transfers_unreachable`, as
        `get_download` does; after the last two, the download may have ended."""
        with _Explained(self.check_allowed):
            found = await self._transfers.cancel_download(download)
        self._log.note_cancellation(found, actor)
        self._take(found)
        return found

    async def wait_for_changes(self, after: int) -> tuple[list[Download], int]:
        """Wait without limit until downloads have changed since version `after`, as `follow_transfers` or another
        method learns it. Return these downloads, the one that changed last at the end, and the version to pass as
        `after` next time. With 0, return every known download, at once if there is one. Raises nothing while
        `transfers` does not answer."""
        while True:
            changed = self._changed
            found = sorted(
                (seen for seen in self._seen.values() if seen.version > after), key=lambda each: each.version
            )
            if found:
                return [each.download for each in found], self._version
            await changed.wait()

    async def follow_transfers(self) -> None:
        """Follow what becomes of all downloads until cancelled, also over restarts of `transfers`. Never raises."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                downloads = self._transfers.follow_downloads()
                async with aclosing(downloads):
                    async for each in downloads:
                        pause_s = FIRST_PAUSE_S
                        self._take(each)
            except RoundhouseError as error:
                log.debug("the downloads cannot be followed: %s", error)
            except Exception:
                # What one answer says must not end the controller.
                log.exception("the downloads cannot be followed")
            await asyncio.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, pause_s * 2)

    def _take(self, download: Download, *, is_ordered: bool = False) -> None:
        """Note what is told of a download. `is_ordered`: as the answer to an order, whose run is the present one also
        where the clock of `transfers` was set back."""
        seen = self._seen.get(download.id)
        if seen is not None and (seen.download == download or _is_older(download, seen.download, is_ordered)):
            return
        self._log.note_download(download)
        self._version += 1
        self._seen[download.id] = _Seen(download, self._version)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _keep_inspection(self, order: ModelDownloadOrder, found: InspectedModel) -> None:
        while len(self._inspected) >= _MOST_KEPT:
            del self._inspected[next(iter(self._inspected))]
        self._inspected[order] = self._clock(), found

    async def _forecast(self, inspection: Inspection, backend: str | None) -> MemoryForecast:
        paths = ModelPaths(inspection.main, inspection.projector, backend)
        try:
            async with asyncio.timeout(FORECAST_S):
                artifacts = await read_remote_artifacts(self._transfers, inspection)
        except TimeoutError:
            reason = f"its files could not be read within {FORECAST_S:g} s"
            return MemoryForecast(summary=f"what it takes is not known: {reason}", backend=backend, reason=reason)
        return forecast_memory(paths, artifacts, self._roots, self._get_observed())


class _Explained:
    """Context in which `transfers_unreachable` becomes `downloads_disabled` where that is the reason."""

    def __init__(self, check_allowed: Callable[[], None]) -> None:
        self._check_allowed = check_allowed

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, RoundhouseError) and error.entry.code == "transfers_unreachable":
            self._check_allowed()


def _is_older(download: Download, seen: Download, is_ordered: bool) -> bool:
    """Return whether a download was told before what is known of it: an answer may be overtaken by an event."""
    if download.created_at != seen.created_at:
        return not is_ordered and download.created_at < seen.created_at
    return seen.state in FINAL_STATES and download.state not in FINAL_STATES


def _parse(text: str) -> ModelReference:
    try:
        return parse_reference(text)
    except InvalidReferenceError as error:
        raise RoundhouseError("reference_invalid", str(error), param="reference") from None


def _plain(order: ModelDownloadOrder, reference: ModelReference) -> DownloadOrder:
    return DownloadOrder(reference=str(reference), include_pickle=order.include_pickle)


ACTOR: Final = "controller"
"""Who orders the downloads, as the history names it."""
LOOK_S: Final = 20.0
"""Seconds without news of a download after which `transfers` is asked for it: it may be gone."""
STEPS: Final = 20
"""The reconciler is woken at each twentieth; finer steps would wake it for nothing."""


class SourceDownloadError(Exception):
    """A source was not downloaded. The message says why, as the second half of a sentence."""


class SourceDownloader(Protocol):
    """What the reconciler downloads sources with. Sources are references in their canonical form."""

    @property
    def fractions(self) -> Mapping[str, float]:
        """Source to the part of its bytes, 0 to 1, that is here, for downloads under way. A source whose part is not
        known is absent."""

    async def download_source(self, source: str) -> None:
        """Download a source, and return when its files are in the models folder and the desired state has their paths.
        A download of it that is under way already, for anybody, is waited for. Cancelling the call does not end the
        download. Raises SourceDownloadError if the download cannot be ordered or watched, fails or is cancelled."""

    async def cancel_source(self, source: str) -> None:
        """End the download of a source that `download_source` began and waits for; do nothing if there is none, or
        somebody else ordered it. Raises SourceDownloadError if it cannot be ended."""


class SourceDownloads:
    """The `SourceDownloader` of a controller: its downloads are those of the admin API."""

    def __init__(
        self, downloads: DownloadService, *, look_for_source: Callable[[str], Awaitable[bool]], wake: Callable[[], None]
    ) -> None:
        """`look_for_source` looks for the files of all sources again, and returns whether those of the given one are
        here. `wake` wakes the reconciler, for each twentieth of a download."""
        self._downloads = downloads
        self._look_for_source = look_for_source
        self._wake = wake
        self._ids: dict[str, str] = {}
        self._own: set[str] = set()
        """Those of `_ids` that began here, and not by an operator's order."""
        self._waiting: Counter[str] = Counter()
        """Calls of `download_source` that wait, by source."""
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By source. Who holds one orders the source, or ends its download: neither overtakes the other."""

    @property
    def fractions(self) -> Mapping[str, float]:
        """Source to the part of its bytes, 0 to 1, that is here, for downloads under way; absent if it is not known."""
        known = self._downloads.known_downloads
        found = {source: _fraction(known.get(download)) for source, download in self._ids.items()}
        return {source: fraction for source, fraction in found.items() if fraction is not None}

    async def download_source(self, source: str) -> None:
        """Order a source as `ACTOR`, or join a download of it that is under way, and return when the desired state has
        the paths of its files. Where they are here already, by a download that somebody else ordered, nothing is
        ordered. Cancelling the call does not end the download. Raises SourceDownloadError if the download cannot be
        ordered, fails or is cancelled, or if `transfers` does not answer; in the last case the download may go on, and
        `cancel_source` does not end it."""
        if await self._look_for_source(source):
            return
        try:
            async with self._lock_of(source):
                ordered, is_new = await self._downloads.order_plain(source, actor=ACTOR)
                self._ids[source] = ordered.id
                if is_new:
                    self._own.add(ordered.id)
                self._waiting[source] += 1
            try:
                ended = await self._wait_until_final(ordered)
            finally:
                # Another call may wait for the source still: it was removed and declared again.
                self._waiting[source] -= 1
                if not self._waiting[source]:
                    self._own.discard(self._ids.pop(source))
                    del self._waiting[source]
        except RoundhouseError as error:
            raise SourceDownloadError(str(error)) from None
        if ended.state == "cancelled":
            raise SourceDownloadError("its download was cancelled")
        if ended.state == "failed":
            raise SourceDownloadError("its download failed" if ended.error is None else ended.error.message)
        if not await self._look_for_source(source):
            raise SourceDownloadError("it is downloaded, but its files are not seen in the models folder")

    async def cancel_source(self, source: str) -> None:
        """End the download of a source that `download_source` began and waits for, or is just ordering; do nothing if
        there is none. Raises SourceDownloadError if it cannot be ended."""
        async with self._lock_of(source):
            download = self._ids.get(source)
            if download not in self._own:
                return
            try:
                await self._downloads.cancel_download(download, actor=ACTOR)
            except RoundhouseError as error:
                raise SourceDownloadError(str(error)) from None

    def _lock_of(self, source: str) -> asyncio.Lock:
        return self._locks.setdefault(source, asyncio.Lock())

    async def _wait_until_final(self, download: Download) -> Download:
        loop = asyncio.get_running_loop()
        version, step, ask_at = 0, -1, loop.time() + LOOK_S
        while download.state not in FINAL_STATES:
            try:
                async with asyncio.timeout_at(ask_at):
                    changed, version = await self._downloads.wait_for_changes(version)
                news = [each for each in changed if each.id == download.id]
                if not news:
                    continue
                [download] = news
            except TimeoutError:
                download = await self._downloads.get_download(download.id)
            ask_at = loop.time() + LOOK_S
            reached = math.floor((_fraction(download) or 0.0) * STEPS)
            if reached != step:
                step = reached
                self._wake()
        return download


def _fraction(download: Download | None) -> float | None:
    if download is None or not download.total_bytes:
        return None
    return min(1.0, download.done_bytes / download.total_bytes)
