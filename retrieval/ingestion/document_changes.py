"""Who waits for a document's next change, and how far versions are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from retrieval.catalog.records import DocumentKey


@dataclass(frozen=True, slots=True)
class EmbeddingProgress:
    """How far the embedding of a version is."""

    chunks: int
    chunks_total: int


class DocumentChanges:
    """Wakes readers of documents, in one event loop. Holds nothing of documents that nobody follows."""

    def __init__(self) -> None:
        self._followers: dict[DocumentKey, set[asyncio.Event]] = {}
        self._progress: dict[int, EmbeddingProgress] = {}
        self._visible_changes: dict[str, int] = {}

    @contextmanager
    def follow_document(self, key: DocumentKey) -> Iterator[asyncio.Event]:
        """Yield an event that is set at each later change of the document. The reader clears it before it reads."""
        event = asyncio.Event()
        followers = self._followers.setdefault(key, set())
        followers.add(event)
        try:
            yield event
        finally:
            followers.discard(event)
            if not followers and self._followers.get(key) is followers:
                del self._followers[key]

    def note_change(self, key: DocumentKey) -> None:
        """Wake the followers of a document: its newest version has another state or progress."""
        for event in self._followers.get(key, ()):
            event.set()

    def note_visible_change(self, tenant: str) -> None:
        """Note that another set of the tenant's versions is visible. Call after each such commit."""
        self._visible_changes[tenant] = self._visible_changes.get(tenant, 0) + 1

    def count_visible_changes(self, tenant: str) -> int:
        """Return a number that differs after each `note_visible_change` for the tenant."""
        return self._visible_changes.get(tenant, 0)

    def set_progress(self, version: int, progress: EmbeddingProgress | None) -> None:
        """Remember how far a version is; None: forget it."""
        if progress is None:
            self._progress.pop(version, None)
        else:
            self._progress[version] = progress

    def find_progress(self, version: int) -> EmbeddingProgress | None:
        """Return how far the embedding of a version is; None: it is not being embedded."""
        return self._progress.get(version)
