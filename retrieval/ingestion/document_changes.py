"""Who waits for a document's next change, and how far versions are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from retrieval.catalog.records import DocumentKey


@dataclass(frozen=True, slots=True)
class EmbeddingProgress:
    """How many chunks of a version are in the vector store in this try, of how many."""

    chunks: int
    chunks_total: int


class DocumentChanges:
    """Tells those who wait in this process what changes: wakes followers of a document, counts changes of what each
    tenant's searches can find, and holds the progress of embeddings. In memory only; use it in one event loop. One
    object serves the whole program; whoever commits a change to the catalog must also note it here."""

    def __init__(self) -> None:
        self._followers: dict[DocumentKey, set[asyncio.Event]] = {}
        self._progress: dict[int, EmbeddingProgress] = {}
        self._visible_changes: dict[str, int] = {}

    @contextmanager
    def follow_document(self, key: DocumentKey) -> Iterator[asyncio.Event]:
        """Return a context manager that yields an event. Within the block, `note_change` for this document and
        `note_deletion` for its tenant set the event; the document need not exist. The follower clears the event, then
        reads the document, then waits: so no change is missed."""
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
        """Wake the followers of a document. Call after each commit that changes its newest version, or deletes it, and
        after each change of its progress. Does nothing where nobody follows."""
        for event in self._followers.get(key, ()):
            event.set()

    def note_visible_change(self, tenant: str) -> None:
        """Count that other versions of the tenant are visible now. Call after each commit that changes this: a search
        under way compares the count with that at its begin, and searches again if it differs."""
        self._visible_changes[tenant] = self._visible_changes.get(tenant, 0) + 1

    def note_deletion(self, tenant: str) -> None:
        """Count a visible change (see `note_visible_change`), and wake the followers of all the tenant's documents.
        Call after each commit that deletes documents of the tenant."""
        self.note_visible_change(tenant)
        for key, followers in self._followers.items():
            if key.tenant == tenant:
                for event in followers:
                    event.set()

    def count_visible_changes(self, tenant: str) -> int:
        """Return how often the visible versions of a tenant have changed since the start of the program: the number of
        calls of `note_visible_change` and `note_deletion` for it."""
        return self._visible_changes.get(tenant, 0)

    def set_progress(self, version: int, progress: EmbeddingProgress | None) -> None:
        """Remember how far the embedding of the version with that number is; None: forget it. Wakes nobody: see
        `note_change`."""
        if progress is None:
            self._progress.pop(version, None)
        else:
            self._progress[version] = progress

    def find_progress(self, version: int) -> EmbeddingProgress | None:
        """Return how far the embedding of the version with that number is; None: it is not being embedded now."""
        return self._progress.get(version)
