"""The collection that searches use, and how another one takes its place."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Sequence
from typing import Final, Literal

from retrieval.catalog.collections import (
    activate_collection,
    add_collection,
    count_missing,
    find_collection,
    forget_collection,
    forget_content,
    list_missing,
    note_indexed,
)
from retrieval.catalog.database import CatalogDatabase
from retrieval.catalog.records import Collection
from retrieval.catalog.versions import find_version
from retrieval.embedding.client import ModelClient
from retrieval.ingestion.collection_writer import CollectionWriter, VersionGoneError
from retrieval.vector_store.base import CollectionSpec, VectorStore

log = logging.getLogger(__name__)

_AT_ONCE: Final = 64
_SPARSE_NAME: Final = "bm25"
_PROBE: Final = "What dimension do these vectors have?"
_UNIT_TOLERANCE: Final = 1e-2


class Index:
    """Knows the active collection, makes it anew where the vector store has lost it, and builds its successor.

    Call `open` first. `publish_lock` is held while a version is published and while collections change places, so that
    no version is published that is missing in the collection that serves.
    """

    def __init__(
        self,
        catalog: CatalogDatabase,
        store: VectorStore,
        writer: CollectionWriter,
        models: ModelClient,
        model: str | None,
    ) -> None:
        """`model`: the embedding model that is set; None: none, so that words alone are searched."""
        self._catalog = catalog
        self._store = store
        self._writer = writer
        self._models = models
        self.wanted_model = model
        self.publish_lock = asyncio.Lock()
        self._create_lock = asyncio.Lock()
        self.active: Collection | None = None
        """The collection that searches use; None: nothing was ever indexed."""
        self.building: Collection | None = None
        """Its successor, while it is built."""
        self.missing = 0
        """Visible versions that searches cannot find, because the vector store lost them and they are not written
        again yet."""

    @property
    def needs_reindex(self) -> bool:
        """Whether another embedding model is set than the active collection has."""
        return self.active is not None and self.active.model != self.wanted_model

    async def open(self) -> None:
        """Compare the catalog's collections with the vector store's, and create what is lost, empty.

        Raises VectorStoreError. Call `fill` afterwards.
        """
        stored = {spec.name for spec in await self._store.list_collections()}
        self.active, self.building = await self._catalog.read(
            lambda db: (find_collection(db, "active"), find_collection(db, "building"))
        )
        for collection in (self.active, self.building):
            if collection is not None and collection.name not in stored:
                log.warning("the vector store has no collection %s: it is made anew", collection.name)
                number = collection.number
                await self._catalog.write(lambda db, number=number: forget_content(db, number))  # type: ignore[misc]
                await self._store.create_collection(CollectionSpec(collection.name, collection.dimension))
        known = {each.name for each in (self.active, self.building) if each is not None}
        for name in stored - known:
            await self._store.delete_collection(name)
        await self._count_missing()

    async def find_active(self) -> Collection:
        """Return the active collection; the first call ever creates it, for the model that is set.

        Raises:
            ModelUnavailableError, ModelRefusedError: the model's dimension could not be learned.
            VectorStoreError: the store fails.
        """
        if self.active is None or (self.needs_reindex and not await self._has_documents()):
            async with self._create_lock:
                if self.active is None or self.active.model != self.wanted_model:
                    await self._replace_empty()
        assert self.active is not None
        return self.active

    async def fill(self) -> None:
        """Write what is missing in the active collection, and finish a collection that was being built.

        Raises what `CollectionWriter.write_version` raises, but VersionGoneError; call it again then.
        """
        if self.active is not None:
            await self._fill(self.active)
        if self.building is not None:
            await self._finish(self.building)

    async def reindex(self) -> None:
        """Build a collection for the model that is set, and let it serve when it has everything. The old one serves
        until then. Goes on with one that is being built, unless that is for another model. Raises as `fill`."""
        if self.building is not None and self.building.model != self.wanted_model:
            await self._drop(self.building)
            self.building = None
        if self.building is None:
            self.building = await self._create("building")
        await self._finish(self.building)

    async def _has_documents(self) -> bool:
        return bool(await self._catalog.read(lambda db: db.execute("SELECT 1 FROM documents LIMIT 1").fetchone()))

    async def _replace_empty(self) -> None:
        if self.active is not None:
            await self._drop(self.active)
            self.active = None
        self.active = await self._create("active")

    async def _create(self, state: Literal["active", "building"]) -> Collection:
        model, dimension, is_normalized = self.wanted_model, None, None
        if model is not None:
            [vector] = await self._models.embed_texts(model, [_PROBE], is_background=True)
            dimension, is_normalized = len(vector), _is_unit(vector)
        taken = {spec.name for spec in await self._store.list_collections()}
        name = choose_name(model, dimension, taken)
        await self._store.create_collection(CollectionSpec(name, dimension))
        return await self._catalog.write(
            lambda db: add_collection(
                db, name=name, model=model, dimension=dimension, is_normalized=is_normalized, state=state
            )
        )

    async def _drop(self, collection: Collection) -> None:
        await self._catalog.write(lambda db: forget_collection(db, collection.number))
        await self._store.delete_collection(collection.name)

    async def _fill(self, collection: Collection) -> None:
        while missing := await self._catalog.read(lambda db: list_missing(db, collection.number, _AT_ONCE)):
            for number in missing:
                await self._write(collection, number)
                await self._count_missing()

    async def _write(self, collection: Collection, number: int) -> None:
        version = await self._catalog.read(lambda db: find_version(db, number))
        if version is None:
            return
        try:
            await self._writer.write_version(collection, version, lambda _: None)
        except VersionGoneError:
            return
        await self._catalog.write(lambda db: note_indexed(db, collection.number, number))

    async def _finish(self, building: Collection) -> None:
        while True:
            await self._fill(building)
            async with self.publish_lock:
                try:
                    old = await self._catalog.write(lambda db: activate_collection(db, building.number))
                except LookupError:
                    continue  # a version was published meanwhile
                self.active, self.building = building, None
            await self._count_missing()
            log.info("collection %s serves", building.name)
            if old is not None:
                await self._store.delete_collection(old.name)
            return

    async def _count_missing(self) -> None:
        active = self.active
        self.missing = 0 if active is None else await self._catalog.read(lambda db: count_missing(db, active.number))


def choose_name(model: str | None, dimension: int | None, taken: set[str]) -> str:
    """Return a new collection's name, such as `minilm-l6-384` or `bm25`; with a number at its end where it is taken."""
    slug = _SPARSE_NAME if model is None else re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")[:64] or "model"
    base = slug if dimension is None else f"{slug}-{dimension}"
    numbered = (f"{base}-{number}" for number in range(2, len(taken) + 3))
    return next(name for name in (base, *numbered) if name not in taken)


def _is_unit(vector: Sequence[float]) -> bool:
    return abs(math.hypot(*vector) - 1.0) < _UNIT_TOLERANCE
