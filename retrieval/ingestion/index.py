"""The collection that searches use, how another takes its place, and the removal of what was replaced or deleted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import re
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

from retrieval.catalog.cleanup import remove_unused_originals
from retrieval.catalog.collections import (
    activate_collection,
    add_collection,
    count_missing,
    find_collection,
    forget_collection,
    has_visible,
    list_missing,
    note_indexed,
    renew_collection,
)
from retrieval.catalog.database import CatalogDatabase
from retrieval.catalog.originals import Originals
from retrieval.catalog.records import Collection
from retrieval.catalog.versions import find_version, list_garbage, remove_garbage
from retrieval.embedding import ModelClient, ModelRefusedError, ModelUnavailableError
from retrieval.ingestion.collection_writer import CollectionWriter, DimensionChangedError, VersionGoneError
from retrieval.vector_store.base import CollectionSpec, VectorStore, VectorStoreError
from retrieval.vector_store.tokenizer import Bm25Options

log = logging.getLogger(__name__)


_AT_ONCE: Final = 64
_SPARSE_NAME: Final = "bm25"
_PROBE: Final = "What dimension do these vectors have?"
_UNIT_TOLERANCE: Final = 1e-2
PASSING: Final = (
    VectorStoreError,
    ModelUnavailableError,
    ModelRefusedError,
    DimensionChangedError,
    KeyError,
    sqlite3.Error,
    OSError,
)
"""What ends work on the index that is tried again. KeyError: the vector store has lost a collection."""


class Index:
    """Knows which collection of the vector store searches use, creates it anew where the vector store has lost it, and
    builds another one for another embedding model when asked to, and for other options of BM25 by itself.

    Call `open` once before anything else, then `fill`. Hold `publish_lock` while a version is made visible, and check
    within it that `active` is still the collection that was written: the lock is also held while a built collection
    becomes the active one, so that no version is visible and missing in it.
    """

    def __init__(
        self,
        catalog: CatalogDatabase,
        store: VectorStore,
        writer: CollectionWriter,
        models: ModelClient,
        model: str | None,
        bm25: Bm25Options,
    ) -> None:
        """`model`: the embedding model that is set; None: none, so that words alone are searched. `bm25`: how words are
        to be made."""
        self._catalog = catalog
        self._store = store
        self._writer = writer
        self._models = models
        self.wanted_model = model
        self.wanted_bm25 = bm25
        self.publish_lock = asyncio.Lock()
        self._build_lock = asyncio.Lock()
        """Held while a collection is created or built, so that never two of them replace the active one."""
        self._is_lost = asyncio.Event()
        self.active: Collection | None = None
        """The collection that searches use; None: nothing was ever indexed, or `open` was not called yet."""
        self.building: Collection | None = None
        """The collection that is to replace `active`, while it is being filled; else None."""
        self._must_rebuild = False
        """Whether `fill` deleted a collection of an unfinished reindex, so that its next call builds another one."""
        self._has_other_dimension = False
        """Whether the model's vectors had another dimension than a collection, so that the next one is made for them,
        even if only its words differ from those of the active one."""
        self.missing = 0
        """Number of visible versions that are not in the active collection, so that searches cannot find them: the
        vector store lost them, and `fill` has not written them again yet."""

    @property
    def needs_reindex(self) -> bool:
        """Whether another embedding model, another language or other parameters of BM25 are set than the active
        collection has; False where there is no active collection."""
        return self.active is not None and not self._is_as_set(self.active)

    @property
    def _has_other_words(self) -> bool:
        """Whether the active collection differs from what is set in the options of BM25 alone."""
        return self.needs_reindex and self.active is not None and self.active.model == self.wanted_model

    @property
    def notice(self) -> str | None:
        """How searches do not follow the settings, and until when; None: they do."""
        return None if self.active is None else describe_change(self.active, self.wanted_model, self.wanted_bm25)

    async def open(self, *, is_restored: bool = False) -> None:
        """Make the vector store's collections those of the catalog, and set `active`, `building` and `missing`.
        Collections that the store has lost are created empty, and those that the catalog does not know are deleted.
        Call once, before anything else.

        `is_restored`: the catalog comes from a backup. All collections are then created anew, because the points in the
        vector store are of another catalog, in which the same numbers mean other versions. Raises VectorStoreError or
        sqlite3.Error.
        """
        stored = {spec.name: spec for spec in await self._store.list_collections()}
        self.active, self.building = await self._catalog.read(
            lambda db: (find_collection(db, "active"), find_collection(db, "building"))
        )
        if is_restored:
            for name in stored:
                await self._store.delete_collection(name)
            stored = {}
        for collection in (self.active, self.building):
            if collection is not None and stored.get(collection.name) != collection.spec:
                await self._renew(collection)
        known = {each.name for each in (self.active, self.building) if each is not None}
        for name in stored.keys() - known:
            await self._store.delete_collection(name)
        if self.notice is not None:
            log.warning("%s", self.notice)
        await self._count_missing()

    def note_lost(self) -> None:
        """Note that the vector store has lost a collection of this index, after a call raised KeyError. Only ends
        `wait_until_lost`; `replace_lost` creates the collection anew."""
        self._is_lost.set()

    async def wait_until_lost(self) -> None:
        """Wait until `note_lost` was called, or return at once if it was called since the last `replace_lost`."""
        await self._is_lost.wait()

    async def replace_lost(self) -> None:
        """Create the active and the building collection anew, empty, if the vector store has lost them. Call `fill`
        afterwards, which writes their points. Raises VectorStoreError or sqlite3.Error."""
        self._is_lost.clear()
        # Those that are known before the store is asked: one that is made beside is in none of its answers.
        active, building = self.active, self.building
        stored = {spec.name for spec in await self._store.list_collections()}
        async with self.publish_lock:
            if active is not None and active == self.active and active.name not in stored:
                await self._renew(active)
            if building is not None and building == self.building and building.name not in stored:
                await self._renew(building)
        await self._count_missing()

    async def find_active(self) -> Collection:
        """Return the active collection; call `open` before. If there is none, create it first for the model that is
        set, which is asked for one embedding to learn its dimension. If it has another model or other options of BM25
        than are set, and no document is visible, build its replacement first.

        Raises:
            ModelUnavailableError: the model does not answer, so that its dimension is not known.
            ModelRefusedError: the model is no embedding model.
            VectorStoreError: the vector store fails.
            DimensionChangedError, KeyError: as `reindex`, if a document becomes visible during a replacement.
            sqlite3.Error: the catalog cannot be read or written.
        """
        if self.active is None or await self._is_replaced_at_once():
            async with self._build_lock:
                if self.active is None:
                    self.active = await self._create("active")
                elif self.needs_reindex:
                    await self._build()
        return self.active

    async def fill(self) -> None:
        """Write the visible versions that are missing in the active collection. Then finish a collection that an
        earlier process was building, which takes the place of the active one (see `reindex`); and build one if the
        one that is active then has other options of BM25 than are set. May take hours. Call `open` before; without a
        collection, nothing is done.

        Raises what `CollectionWriter.write_version` raises, except VersionGoneError: VectorStoreError,
        ModelUnavailableError, ModelRefusedError, DimensionChangedError, KeyError or sqlite3.Error. What was written
        stays, and the next call goes on from there; after KeyError, call `replace_lost` first. If the model's vectors
        have another dimension than the collection that is being built, this collection is deleted, and the next call
        builds another one, as `reindex` does; if another one than the active collection, only `reindex` helps, unless
        the active one is to be replaced for its words.
        """
        if (active := self.active) is not None:
            try:
                await self._fill(active)
            except KeyError:
                if self.active == active:
                    raise
            except DimensionChangedError:
                if not self._has_other_words:
                    raise
        async with self._build_lock:
            while True:
                if self._must_rebuild or self._has_other_words:
                    await self._build()
                elif self.building is not None:
                    try:
                        await self._finish(self.building)
                    except DimensionChangedError:
                        self._must_rebuild = True
                        raise
                else:
                    return

    async def reindex(self) -> None:
        """Build a new collection for the model and the options of BM25 that are set, even if the active one has the
        same. When it has the points of all visible versions, it becomes the active one, and the old one is deleted. A
        collection that is being built already is completed, unless it is for other settings: then it is dropped first.
        If only the options of BM25 are others, the vectors of the active collection are taken, and no model is asked,
        unless it was seen to answer vectors of another dimension.

        Call `open` before. May take hours. Raises VectorStoreError, ModelUnavailableError, ModelRefusedError,
        DimensionChangedError, KeyError or sqlite3.Error; the next call then goes on, after DimensionChangedError with a
        new collection.
        """
        async with self._build_lock:
            await self._build()

    async def _build(self) -> None:
        if self.building is not None and not self._is_as_set(self.building):
            await self._drop_building()
        if self.building is None:
            self.building = await self._create("building")
        await self._finish(self.building)

    def _is_as_set(self, collection: Collection) -> bool:
        return collection.model == self.wanted_model and collection.bm25 == self.wanted_bm25

    async def _is_replaced_at_once(self) -> bool:
        if not self.needs_reindex or self.building is not None:
            return False
        return not await self._catalog.read(has_visible)

    async def _renew(self, collection: Collection) -> None:
        """Create a lost collection anew. Its new number tells writers under way that their points are not all in it."""
        log.warning("the vector store has no such collection %s: it is made anew", collection.name)
        # The catalog first: an empty collection of which it knows documents would be taken for a whole one.
        renewed = await self._catalog.write(partial(renew_collection, collection=collection))
        if collection.state == "active":
            self.active = renewed
        else:
            self.building = renewed
        await self._store.delete_collection(collection.name)
        await self._store.create_collection(collection.spec)

    async def _create(self, state: Literal["active", "building"]) -> Collection:
        model, dimension, is_normalized = self.wanted_model, None, None
        if self._has_other_words and self.active is not None and not self._has_other_dimension:
            dimension, is_normalized = self.active.dimension, self.active.is_normalized
        elif model is not None:
            [vector] = await self._models.embed_texts(model, [_PROBE], is_background=True)
            dimension, is_normalized = len(vector), abs(math.hypot(*vector) - 1.0) < _UNIT_TOLERANCE
        taken = {spec.name for spec in await self._store.list_collections()}
        spec = CollectionSpec(choose_name(model, dimension, taken), dimension, self.wanted_bm25)
        await self._store.create_collection(spec)
        return await self._catalog.write(
            lambda db: add_collection(db, spec, model=model, is_normalized=is_normalized, state=state)
        )

    async def _drop_building(self) -> None:
        building, self.building = self.building, None
        assert building is not None
        await self._catalog.write(lambda db: forget_collection(db, building.number))
        await self._delete_unused(building.name)

    async def _delete_unused(self, name: str) -> None:
        """Delete a collection that the catalog has forgotten. A failure is only logged: `open` deletes it, too."""
        try:
            await self._store.delete_collection(name)
        except VectorStoreError as error:
            log.warning("collection %s is not used any more, and stays until the next start: %s", name, error)

    async def _fill(self, collection: Collection) -> None:
        last, has_written = 0, False
        while True:
            missing = await self._catalog.read(
                partial(list_missing, number=collection.number, limit=_AT_ONCE, after=last)
            )
            if not missing:
                if not last or not has_written:
                    return
                last, has_written = 0, False  # from the beginning: an older one may have become visible
                continue
            last = missing[-1]
            written: list[int] = []
            try:
                for number in missing:
                    if await self._write(collection, number):
                        written.append(number)  # noqa: PERF401 - what is written before a failure counts
            except Exception:
                if written:
                    with contextlib.suppress(*PASSING):  # the first one is raised
                        await self._note_written(collection, written)
                raise
            has_written = has_written or bool(written)
            await self._note_written(collection, written)

    async def _note_written(self, collection: Collection, versions: Sequence[int]) -> None:
        await self._store.flush_collection(collection.name)
        await self._catalog.write(partial(_note_all_indexed, collection=collection.number, versions=versions))
        if collection == self.active:
            await self._count_missing()

    async def _write(self, collection: Collection, number: int) -> bool:
        if collection not in (self.active, self.building):
            raise KeyError(f"{collection.name} was made anew")  # its new number is what versions are noted for
        version = await self._catalog.read(lambda db: find_version(db, number))
        if version is None:
            return False
        source = self.active if self._has_other_words and collection != self.active else None
        if source is not None and source.dimension != collection.dimension:
            source = None
        try:
            try:
                await self._writer.write_version(collection, version, lambda _: None, source)
            except ModelRefusedError as error:
                assert collection.model is not None
                # A model that refuses everything refuses this, too.
                await self._models.embed_texts(collection.model, [_PROBE], is_background=True)
                log.warning("a document of %s is found by words alone in part: %s", version.tenant, error)
                await self._writer.write_version(collection, version, lambda _: None, source, leaves_out=True)
        except VersionGoneError:
            return False
        except DimensionChangedError:
            self._has_other_dimension = True
            raise
        return True

    async def _finish(self, building: Collection) -> None:
        while True:
            try:
                await self._fill(building)
            except DimensionChangedError:
                await self._drop_building()
                raise
            async with self.publish_lock:
                try:
                    old = await self._catalog.write(lambda db: activate_collection(db, building.number))
                except LookupError:
                    continue  # a version was published meanwhile
                self.active, self.building = replace(building, state="active"), None
                self._must_rebuild = self._has_other_dimension = False
            await self._count_missing()
            log.info("collection %s serves", building.name)
            if old is not None:
                await self._delete_unused(old.name)
            return

    async def _count_missing(self) -> None:
        active = self.active
        self.missing = 0 if active is None else await self._catalog.read(lambda db: count_missing(db, active.number))


def describe_change(active: Collection, model: str | None, bm25: Bm25Options) -> str | None:
    """Return a text that says how the active collection differs from the settings (`model`: None means no embedding
    model), and until when. None: it does not differ."""
    changes = []
    if active.model != model:
        changes.append(f"the embedding model {active.model or 'none'}, and set is {model or 'none'}")
    if active.bm25.language != bm25.language:
        changes.append(f"words in the language {active.bm25.language}, and set is {bm25.language}")
    elif active.bm25 != bm25:
        changes.append("words by other rules than this version of Roundhouse has")
    if not changes:
        return None
    how = "It is being built anew" if active.model == model else "`roundhouse rag reindex` builds it anew"
    dates = ", and ranges of dates miss older documents" if active.bm25.version < bm25.version else ""
    return f"The index has {'; '.join(changes)}. {how}; until then the old one serves{dates}."


def choose_name(model: str | None, dimension: int | None, taken: set[str]) -> str:
    """Return a name for a new collection that is not in `taken`. It is made of the model's name and the dimension
    (`minilm-l6-384`), or `bm25` if `model` is None, and ends with `-2`, `-3`, ... if that name is taken."""
    slug = _SPARSE_NAME if model is None else re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")[:64] or "model"
    base = slug if dimension is None else f"{slug}-{dimension}"
    numbered = (f"{base}-{number}" for number in range(2, len(taken) + 3))
    return next(name for name in (base, *numbered) if name not in taken)


def _note_all_indexed(db: sqlite3.Connection, collection: int, versions: Sequence[int]) -> None:
    for version in versions:
        note_indexed(db, collection, version)


@dataclass(frozen=True, slots=True)
class DocumentStores:
    """What documents are kept in: catalog, original files and vector store, with the index and the writer over them."""

    catalog: CatalogDatabase
    originals: Originals
    vectors: VectorStore
    index: Index
    """Made with the same `catalog`, `vectors` and `writer`."""
    writer: CollectionWriter


_REMOVED_AT_ONCE: Final = 200


class GarbageCollector:
    """Removes versions in the state `garbage` with their points, texts, chunks and originals. It does nothing by
    itself: call `collect` after deletions and publications, one call at a time."""

    def __init__(self, stores: DocumentStores) -> None:
        self._catalog = stores.catalog
        self._originals = stores.originals
        self._store = stores.vectors
        self._index = stores.index
        self._writer = stores.writer

    async def collect(self) -> int:
        """Remove all garbage versions but those that `CollectionWriter.write_version` is at work on; they stay for a
        later call. Return how many versions were removed. No other `collect` may be under way.

        Raises VectorStoreError, OSError, sqlite3.Error, or KeyError where the vector store has lost a collection.
        Versions that are left then stay garbage for the next call; originals that are left go with `remove_leftovers`.
        """
        removed = 0
        while True:
            in_use = len(self._writer.versions_in_use)
            found = await self._catalog.read(partial(list_garbage, limit=_REMOVED_AT_ONCE + in_use))
            garbage = [number for number in found if number not in self._writer.versions_in_use]
            if not garbage:
                return removed
            for collection in (self._index.active, self._index.building):
                if collection is not None:
                    await self._store.delete_versions(collection.name, garbage)
                    await self._store.flush_collection(collection.name)
            unused = await self._catalog.write(partial(remove_garbage, versions=garbage))
            await remove_unused_originals(self._catalog, self._originals, unused)
            removed += len(garbage)

    async def remove_leftovers(self) -> int:
        """Remove all originals that no version and no uploaded file needs, as a crash leaves them. Return how many.
        Call once, at start. Raises OSError or sqlite3.Error."""
        hashes = await asyncio.to_thread(lambda: list(self._originals.list_originals()))
        return await remove_unused_originals(self._catalog, self._originals, hashes)

    async def remove_postponed(self) -> int:
        """Remove originals that stayed because a backup was reading them, unless something needs them or a backup still
        reads them. Return how many. Call now and then. Raises OSError or sqlite3.Error; what is left then goes with
        `remove_leftovers` at the next start."""
        return await remove_unused_originals(self._catalog, self._originals, self._originals.take_postponed())
