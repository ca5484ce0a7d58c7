"""What the controller does about downloads: looks, orders, cancels, and knows how far each is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from common.model_names import suggest_model_name
from common.model_reference import InvalidReferenceError, ModelReference, parse_reference
from controller.artifacts.model_roots import ModelRoots
from controller.downloads.declared_fields import build_fields
from controller.downloads.download_log import DownloadLog
from controller.downloads.forecast import ModelPaths, forecast_memory
from controller.downloads.permission import DownloadPermission
from controller.downloads.remote_heads import read_remote_artifacts
from controller.downloads.transfers_client import Transfers
from controller.schema.downloads import FINAL_STATES, Download, DownloadOrder, Inspection
from controller.schema.errors import RoundhouseError
from controller.schema.model_files import InspectedModel, MemoryForecast, ModelDownloadOrder, OrderedDownload
from controller.state import ObservedState

FORECAST_S: Final = 60.0
"""Seconds for the heads of files, after which a forecast is not known."""
INSPECTION_KEPT_S: Final = 60.0
"""Seconds for which an inspection counts for an order of the same."""
_MOST_KEPT: Final = 32
FIRST_PAUSE_S: Final = 0.5
"""Seconds before the first try to follow the downloads again."""
LONGEST_PAUSE_S: Final = 10.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Seen:
    download: Download
    version: int
    """Counter of changes at which it was seen so."""


class DownloadService:
    """The downloads of one controller, made by `transfers`. Every method that asks `transfers` raises what `Transfers`
    raises, and `downloads_disabled` in place of `transfers_unreachable` where downloads are not allowed, so that nobody
    looks for a program that is not meant to run. Run `follow_transfers` in a task of its own: without it, only these
    methods learn how far downloads are."""

    def __init__(
        self,
        transfers: Transfers,
        *,
        get_permission: Callable[[], DownloadPermission],
        get_observed: Callable[[], ObservedState | None],
        roots: ModelRoots,
        download_log: DownloadLog,
        clock: Callable[[], float],
    ) -> None:
        """`get_observed` returns the last observation (None: there is none yet). `roots`: the models folders, absolute.
        `clock`: a time in seconds."""
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

    async def inspect_model(self, order: ModelDownloadOrder) -> InspectedModel:
        """Return what a reference resolves to now, the memory that its model will take, and where it fits. Heads of
        files that cannot be read within 60 s raise nothing: the forecast then says that the memory is not known.

        Raises RoundhouseError `downloads_disabled`, `reference_invalid`, `transfers_unreachable`, or an error that
        `transfers` answers with (`source_…`, `models_…`).
        """
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
        ordered by `actor`. The model is inspected first (see `inspect_model`), unless the same order was inspected in
        the last 60 s.

        Raises RoundhouseError: `downloads_disabled`, `reference_invalid`, `transfers_unreachable`, or an error that
        `transfers` answers with (`source_…`, `models_…`). Only after `transfers_unreachable` may the download have
        begun.
        """
        self.check_allowed()
        at, inspected = self._inspected.get(order, (0.0, None))
        if inspected is None or not 0 <= self._clock() - at < INSPECTION_KEPT_S:
            inspected = await self.inspect_model(order)
        download, is_new = await self._transfers.order_download(_plain(order, _parse(order.reference)))
        if is_new:
            self._log.note_order(download, actor)
        self._take(download)
        fields = dict(download) | {"inspection": inspected.inspection, "forecast": inspected.forecast}
        return OrderedDownload(**fields), is_new

    async def order_plain(self, reference: str, *, actor: str) -> Download:
        """Begin a download without a look at the memory that the model will take, and return it. `reference`: a model
        reference as text. A new run is recorded in the journal as ordered by `actor`. Raises RoundhouseError
        `downloads_disabled`, `reference_invalid`, `transfers_unreachable`, or an error that `transfers` answers with
        (`source_…`, `models_…`). Only after `transfers_unreachable` may the download have begun."""
        self.check_allowed()
        download, is_new = await self._transfers.order_download(DownloadOrder(reference=str(_parse(reference))))
        if is_new:
            self._log.note_order(download, actor)
        self._take(download)
        return download

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
        """Return a download, by its id, as it is now. Raises RoundhouseError `download_not_found`; where `transfers`
        does not answer, `downloads_disabled` if downloads are not allowed, else `transfers_unreachable`; or an error
        that `transfers` answers with."""
        with _Explained(self.check_allowed):
            found = await self._transfers.get_download(download)
        self._take(found)
        return found

    async def cancel_download(self, download: str, *, actor: str) -> Download:
        """End a download, by its id, record that `actor` did so, and return the download. One that has ended stays as
        it is. Raises RoundhouseError `download_not_found`; where `transfers` does not answer, `downloads_disabled` if
        downloads are not allowed, else `transfers_unreachable`; or an error that `transfers` answers with. After
        `transfers_unreachable`, the download may have ended."""
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

    def _take(self, download: Download) -> None:
        seen = self._seen.get(download.id)
        if seen is not None and (seen.download == download or _is_older(download, seen.download)):
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


def _is_older(download: Download, seen: Download) -> bool:
    """Return whether a download was told before what is known of it: an answer may be overtaken by an event."""
    if download.created_at != seen.created_at:
        return download.created_at < seen.created_at
    return seen.state in FINAL_STATES and download.state not in FINAL_STATES


def _parse(text: str) -> ModelReference:
    try:
        return parse_reference(text)
    except InvalidReferenceError as error:
        raise RoundhouseError("reference_invalid", str(error), param="reference") from None


def _plain(order: ModelDownloadOrder, reference: ModelReference) -> DownloadOrder:
    return DownloadOrder(reference=str(reference), include_pickle=order.include_pickle)
