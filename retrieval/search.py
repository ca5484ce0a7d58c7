"""Searches: candidates from the vector store, texts from the catalog, perhaps ranked by a model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from contract.documents import FusionChoice, Mode, SearchHit, SearchRequest, SearchResult, SearchScores
from contract.errors import RoundhouseError
from retrieval.catalog.chunks import find_visible
from retrieval.catalog.database import CatalogDatabase
from retrieval.catalog.records import Collection, FoundChunk
from retrieval.catalog.versions import list_hidden
from retrieval.embedding import ModelClient, ModelRefusedError, ModelUnavailableError, Prefixes
from retrieval.filters import FilterError, parse_filter
from retrieval.fusion import Candidate, FusionRule, Place, fuse_rankings
from retrieval.ingestion.document_changes import DocumentChanges
from retrieval.ingestion.index import Index
from retrieval.vector_store.base import ScoredPoint, SearchScope, VectorStore, VectorStoreError
from retrieval.vector_store.tokenizer import has_words

CANDIDATES: Final = 50
"""Chunks that are taken from each ranking to be fused or reranked, at least; `CANDIDATES_PER_HIT` times `top_k` if
more."""
CANDIDATES_PER_HIT: Final = 4
_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class Found:
    """One hit in the making: a candidate of the rankings with its text from the catalog. `score` is what hits are
    ordered by: the fused score, or the rerank model's, which is then also in `rerank` (None: not reranked)."""

    candidate: Candidate
    chunk: FoundChunk
    score: float
    rerank: float | None


class SearchService:
    """Answers searches over the documents of one tenant at a time, from the collection that is active. Changes nothing.
    One object serves all tenants; searches run concurrently."""

    def __init__(
        self,
        catalog: CatalogDatabase,
        store: VectorStore,
        index: Index,
        models: ModelClient,
        changes: DocumentChanges,
        prefixes_of: Callable[[str], Prefixes],
        rerank_model: str | None,
    ) -> None:
        """`prefixes_of`: called with the name of an embedding model, returns the prefixes of that model.
        `rerank_model`: name of the rerank model; None: none is set, and searches with `rerank` are refused."""
        self._catalog = catalog
        self._store = store
        self._index = index
        self._models = models
        self._changes = changes
        self._prefixes_of = prefixes_of
        self._rerank_model = rerank_model

    @property
    def has_rerank_model(self) -> bool:
        """Whether a rerank model is set; whether it answers is not known."""
        return self._rerank_model is not None

    async def search(self, tenant: str, spaces: Sequence[str], request: SearchRequest) -> SearchResult:
        """Return up to `top_k` hits, best first, from the tenant's documents in these spaces ("": those of no vector
        store); at least one space. Every hit is of a version that was visible during the search. If nothing was ever
        indexed, there are no hits, and no model is asked.

        Raises:
            RoundhouseError: `invalid_request` for the filter, the mode, a query that the model refuses, or `rerank`
                without a rerank model; `embedding_model_changed` (see `choose_mode`; or the model's dimension changed);
                `embedding_unavailable`, `rerank_unavailable`, `vector_store_unavailable` (also where the store has lost
                the active collection, which is made anew then).
            sqlite3.Error: the catalog cannot be read.
        """
        try:
            parsed = parse_filter(request.filter)
        except FilterError as error:
            raise RoundhouseError("invalid_request", f"{error}.", param="filter") from None
        collection = self._index.active
        mode = choose_mode(request.mode, collection, self._index.wanted_model)
        rerank_model = self._choose_rerank_model(wants_rerank=request.rerank)
        if collection is None:
            return self._result(request.query, mode, None, rerank_model, [])
        vector = await self._embed_query(collection, request.query, mode)
        depth = request.top_k
        if mode == "hybrid" or rerank_model is not None:
            depth = max(CANDIDATES, CANDIDATES_PER_HIT * request.top_k)
        try:
            found = await self._find(
                collection,
                request.query,
                vector,
                mode,
                depth,
                lambda hidden: SearchScope(tenant, spaces, parsed, hidden),
                _rule_of(request.fusion),
            )
        except (KeyError, VectorStoreError) as error:
            if self._index.active is not collection:
                return await self.search(tenant, spaces, request)  # another collection serves since
            message = f"The vector store does not answer: {error}."
            if isinstance(error, KeyError):
                self._index.note_lost()
                message = "The vector store has lost the index, which is made anew."
            raise RoundhouseError("vector_store_unavailable", message) from None
        if rerank_model is not None:
            found = await self._rerank(rerank_model, request.query, found)
        threshold = request.score_threshold
        kept = [each for each in found if threshold is None or each.score >= threshold]
        return self._result(request.query, mode, collection.model, rerank_model, kept[: request.top_k])

    def _choose_rerank_model(self, *, wants_rerank: bool) -> str | None:
        if wants_rerank and self._rerank_model is None:
            message = "No rerank model is set (ROUNDHOUSE_RETRIEVAL_RERANK_MODEL)."
            raise RoundhouseError("invalid_request", message, param="rerank")
        return self._rerank_model if wants_rerank else None

    async def _embed_query(self, collection: Collection, query: str, mode: Mode) -> Sequence[float] | None:
        if mode == "sparse" or collection.model is None:
            return None
        text = self._prefixes_of(collection.model).query + query
        try:
            [vector] = await self._models.embed_texts(collection.model, [text], is_background=False)
        except ModelUnavailableError as error:
            message = f"{collection.model} does not answer: {error}"
            raise RoundhouseError("embedding_unavailable", message, model=collection.model) from None
        except ModelRefusedError as error:
            message = f"{collection.model} refuses the query: {error}"
            raise RoundhouseError("invalid_request", message, param="query") from None
        if len(vector) != collection.dimension:
            message = (
                f"{collection.model} answers {len(vector)} dimensions now, and the documents were indexed with "
                f"{collection.dimension}."
            )
            raise RoundhouseError("embedding_model_changed", message)
        return vector

    async def _find(
        self,
        collection: Collection,
        query: str,
        vector: Sequence[float] | None,
        mode: Mode,
        depth: int,
        scope_without: Callable[[frozenset[int]], SearchScope],
        rule: FusionRule,
    ) -> list[Found]:
        tenant = scope_without(frozenset()).tenant
        for _ in range(_TRIES):
            changes = self._changes.count_visible_changes(tenant)
            scope = scope_without(await self._catalog.read(lambda db: list_hidden(db, tenant)))
            dense, sparse = await asyncio.gather(
                self._search_dense(collection, vector, scope, depth),
                self._search_sparse(collection, query if mode != "dense" else None, scope, depth),
            )
            candidates = fuse_rankings(dense, sparse, rule)[:depth]
            chunks = await self._read_chunks(tenant, candidates)
            if changes == self._changes.count_visible_changes(tenant):
                break
            # A document was replaced meanwhile: its old version may be missing, and its new one was hidden.
        return [Found(each, chunks[each.place], each.score, None) for each in candidates if each.place in chunks]

    async def _read_chunks(self, tenant: str, candidates: Sequence[Candidate]) -> Mapping[Place, FoundChunk]:
        places = [each.place for each in candidates]
        return await self._catalog.read(lambda db: find_visible(db, tenant, places))

    async def _search_dense(
        self, collection: Collection, vector: Sequence[float] | None, scope: SearchScope, depth: int
    ) -> Sequence[ScoredPoint] | None:
        if vector is None:
            return None
        return await self._store.search_dense(collection.name, vector, scope, depth)

    async def _search_sparse(
        self, collection: Collection, query: str | None, scope: SearchScope, depth: int
    ) -> Sequence[ScoredPoint] | None:
        if query is None:
            return None
        return await self._store.search_sparse(collection.name, query, scope, depth)

    async def _rerank(self, model: str, query: str, found: Sequence[Found]) -> list[Found]:
        if not found:
            return []
        passages = [each.chunk.chunk.indexed_text for each in found]
        try:
            scores = await self._models.rank_passages(model, query, passages)
        except (ModelUnavailableError, ModelRefusedError) as error:
            raise RoundhouseError("rerank_unavailable", f"{model} does not rank: {error}", model=model) from None
        ranked = [Found(each.candidate, each.chunk, score, score) for each, score in zip(found, scores, strict=True)]
        return sorted(ranked, key=lambda each: (-each.score, each.candidate.place))

    def _result(
        self, query: str, mode: Mode, embedding_model: str | None, rerank_model: str | None, found: Sequence[Found]
    ) -> SearchResult:
        notices = filter(None, (describe_query(query, mode), self._index.notice))
        return SearchResult(
            mode=mode,
            embedding_model=None if mode == "sparse" else embedding_model,
            rerank_model=rerank_model,
            complete=self._index.missing == 0,
            notice=" ".join(notices) or None,
            data=[_hit_of(each) for each in found],
        )


def choose_mode(asked: Mode | None, collection: Collection | None, wanted_model: str | None) -> Mode:
    """Return the mode of a search: `asked`, or if that is None, `hybrid` if the collection has vectors, else `sparse`.

    `collection`: the active one; None: nothing was ever indexed, so every mode is allowed, and finds nothing.
    `wanted_model`: the embedding model that is configured now, perhaps another one than the collection's; None: none
    is.

    Raises:
        RoundhouseError: `asked` is `dense` or `hybrid`, and the collection has no vectors: `embedding_model_changed` if
            `wanted_model` is set (a reindex adds the vectors), else `invalid_request`.
    """
    has_vectors = collection is not None and collection.model is not None
    if asked is None:
        return "hybrid" if has_vectors else "sparse"
    if asked == "sparse" or has_vectors or collection is None:
        return asked
    if wanted_model is not None:
        message = "The documents were indexed before an embedding model was set."
        raise RoundhouseError("embedding_model_changed", message)
    message = f"`{asked}` needs an embedding model, and none is set (ROUNDHOUSE_RETRIEVAL_EMBEDDING_MODEL)."
    raise RoundhouseError("invalid_request", message, param="mode")


def describe_query(query: str, mode: Mode) -> str | None:
    """Return a text that says that nothing of a query could be searched by words; None: something was, or it need not
    be."""
    if mode == "dense" or has_words(query):
        return None
    return "The query has neither letters nor digits, so no words could be searched."


def _rule_of(choice: FusionChoice | None) -> FusionRule:
    return FusionRule() if choice is None else FusionRule(choice.method, choice.dense_weight, choice.sparse_weight)


def _hit_of(found: Found) -> SearchHit:
    chunk, candidate = found.chunk.chunk, found.candidate
    return SearchHit(
        document_id=found.chunk.document_id,
        filename=found.chunk.filename,
        chunk=chunk.ordinal,
        start=chunk.start,
        end=chunk.end,
        page=chunk.page,
        headings=list(chunk.headings),
        text=chunk.text,
        score=found.score,
        scores=SearchScores(
            dense=candidate.dense,
            dense_rank=candidate.dense_rank,
            sparse=candidate.sparse,
            sparse_rank=candidate.sparse_rank,
            rerank=found.rerank,
        ),
        metadata=dict(found.chunk.metadata),
        space=found.chunk.space,
    )
