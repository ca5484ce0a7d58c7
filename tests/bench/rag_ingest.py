"""A whole Roundhouse that ingests documents with real engines: what part of the time the vector store takes, and how
much longer a chat's first token takes meanwhile."""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from common.shared_token import SharedToken, read_token
from retrieval.embedding import GatewayModelClient, ModelClient
from retrieval.parsing.pool import ParserPool
from retrieval.vector_store.base import Point, VectorStore
from retrieval.vector_store.edge.store import EdgeStore
from tests.bench.load import Connection, close, connect, post_bytes
from tests.bench.report import Figure, median_ratio, percentile
from tests.support.minilm_model import Minilm
from tests.support.retrieval_harness import RetrievalHarness, retrieval_harness
from tests.support.roundhouse_stack import RoundhouseStack
from tests.support.synonyms import SYNONYMS
from tests.support.wait import until
from worker.clockwork import make_model

STORE, FLUSH, MODEL = "store", "flush", "model"
CHAT_MODEL, EMBEDDING_MODEL = "chat", "all-MiniLM-L6-v2"
LAYERS: Final = 17
"""Of the chat's model: 2.6 million parameters."""
CONTEXT: Final = 8192
WORDS: Final = 1_600
"""Of a document: some eight chunks."""
QUESTION_WORDS: Final = 60
"""Of a chat, each of other words: a prompt that no cache has."""
AT_ONCE: Final = 2
"""Documents that are sent at the same time; each is waited for."""
_LIMIT_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    documents: int
    chats: int
    rounds: int


class BusyTimes:
    """Notes how long the vector store, the embedding model, or both of them were asked for something."""

    def __init__(self) -> None:
        self._asked: Counter[str] = Counter()
        self._since = time.perf_counter()
        self._seconds: dict[frozenset[str], float] = defaultdict(float)

    @contextmanager
    def note(self, name: str) -> Iterator[None]:
        """Count what happens within as asked of `name`."""
        self._change(name, 1)
        try:
            yield
        finally:
            self._change(name, -1)

    def seconds_of(self, name: str, without: str | None = None) -> float:
        """Return the seconds in which something was asked of `name`, and nothing of `without`, since `restart`."""
        return sum(each for names, each in self._seconds.items() if name in names and without not in names)

    def restart(self) -> None:
        """Forget what was noted. Nothing may be asked now."""
        self._seconds.clear()

    def _change(self, name: str, by: int) -> None:
        now = time.perf_counter()
        self._seconds[frozenset(+self._asked)] += now - self._since
        self._since = now
        self._asked[name] += by


class TimedStore:
    """A vector store whose writes are noted."""

    def __init__(self, store: VectorStore, times: BusyTimes) -> None:
        self._store = store
        self._times = times

    async def upsert_points(self, collection: str, points: Sequence[Point]) -> None:
        with self._times.note(STORE):
            await self._store.upsert_points(collection, points)

    async def flush_collection(self, collection: str) -> None:
        with self._times.note(STORE), self._times.note(FLUSH):
            await self._store.flush_collection(collection)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class TimedModels:
    """A client of models whose embeddings are noted."""

    def __init__(self, models: ModelClient, times: BusyTimes) -> None:
        self._models = models
        self._times = times

    async def embed_texts(self, model: str, texts: Sequence[str], *, is_background: bool) -> list[Sequence[float]]:
        with self._times.note(MODEL):
            return await self._models.embed_texts(model, texts, is_background=is_background)

    async def rank_passages(self, model: str, query: str, passages: Sequence[str]) -> list[float]:
        return await self._models.rank_passages(model, query, passages)


async def measure_share(folder: Path, model: Minilm, sizes: Sizes) -> list[Figure]:
    """Ingest documents one time, by a retrieval program in this process, which asks the gateway for embeddings."""
    async with _open_stack(folder, model, has_chat=False) as stack:
        token_file = stack.state / "retrieval-token"
        SharedToken(token_file, "the token of retrieval and the gateway").ensure_token()
        times = BusyTimes()
        store = TimedStore(await EdgeStore.open(folder / "own" / "edge"), times)
        async with (
            GatewayModelClient(stack.url, lambda: read_token(token_file), 8) as models,
            retrieval_harness(
                folder / "own",
                store=store,
                models=TimedModels(models, times),  # type: ignore[arg-type] # another client
                parser=ParserPool(),
                retrieval_embedding_model=EMBEDDING_MODEL,
            ) as here,
        ):
            await here.add("The first one makes the collection.", "first")
            times.restart()
            written, start = here.retrieval.writer.points_written, time.perf_counter()
            await _add_all(here, list(itertools.islice(_make_texts(), sizes.documents)))
            taken = time.perf_counter() - start
            chunks = here.retrieval.writer.points_written - written
    return [
        Figure("chunks ingested per second", chunks / taken, "1/s"),
        Figure("the store's part of an ingestion's time", 100 * times.seconds_of(STORE) / taken, "%", "<= 10"),
        Figure("of it while nothing is embedded", 100 * times.seconds_of(STORE, without=MODEL) / taken, "%"),
        Figure("of it flushes", 100 * times.seconds_of(FLUSH) / taken, "%"),
        Figure("the store's time per chunk", 1000 * times.seconds_of(STORE) / chunks, "ms"),
    ]


async def measure_chat(folder: Path, model: Minilm, sizes: Sizes) -> list[Figure]:
    """Ask for chats one after the other, alone, beside a program that only computes, and beside an ingestion that does
    not end, in turn."""
    seen: dict[str, list[list[float]]] = {"alone": [], "computing": [], "beside": []}
    async with _open_stack(folder, model, has_chat=True) as stack:
        questions = _make_questions(stack.port)
        await _ask_chats(stack.port, questions, sizes.chats)
        for _ in range(sizes.rounds):
            seen["alone"].append(await _ask_chats(stack.port, questions, sizes.chats))
            async with _computing():
                seen["computing"].append(await _ask_chats(stack.port, questions, sizes.chats))
            async with _ingesting(stack):
                seen["beside"].append(await _ask_chats(stack.port, questions, sizes.chats))
    alone, computing, beside = ([*map(statistics.median, rounds)] for rounds in seen.values())
    late = {name: [percentile(each, 0.95) for each in rounds] for name, rounds in seen.items()}
    return [
        Figure("chat's first token p50, alone", statistics.median(alone) * 1000, "ms"),
        Figure("chat's first token p50, beside an ingestion", statistics.median(beside) * 1000, "ms"),
        Figure("chat's first token p50, beside over alone", median_ratio(beside, alone), "x", "<= 1.2"),
        Figure("the same, beside a program that computes on one core", median_ratio(computing, alone), "x"),
        Figure("the same, beside an ingestion over beside that program", median_ratio(beside, computing), "x"),
        Figure("chat's first token p95, beside over alone", median_ratio(late["beside"], late["alone"]), "x"),
    ]


@asynccontextmanager
async def _open_stack(folder: Path, model: Minilm, *, has_chat: bool) -> AsyncIterator[RoundhouseStack]:
    state = folder / "stack" / "state"
    address = {
        "ROUNDHOUSE_RETRIEVAL_LISTEN": f"unix:{state}/retrieval.sock",
        "ROUNDHOUSE_RETRIEVAL_URL": f"unix:{state}/retrieval.sock",
        "ROUNDHOUSE_RETRIEVAL_EMBEDDING_MODEL": EMBEDDING_MODEL,
        "ROUNDHOUSE_LOG_LEVEL": "warning",
    }
    stack = RoundhouseStack(folder / "stack", "process", address)
    stack.settings["ROUNDHOUSE_GATEWAY_URL"] = stack.url
    shutil.copy(model.gguf, stack.models / "minilm.gguf")
    models: dict[str, Any] = {
        EMBEDDING_MODEL: {
            "model_path": "minilm.gguf",
            "llama_server_embedding": True,
            "llama_server_pooling": "mean",
            "llama_server_threads": 1,
        }
    }
    if has_chat:
        make_model(stack.models / "chat.gguf", context=CONTEXT, layers=LAYERS)
        models[CHAT_MODEL] = {"model_path": "chat.gguf", "llama_server_n_ctx": CONTEXT, "llama_server_threads": 1}
    stack.declare(models)
    async with stack.running(*models):
        if has_chat:
            stack.start("retrieval")
        yield stack


@asynccontextmanager
async def _computing() -> AsyncIterator[None]:
    """A program keeps one core busy, as the embedding engine does on a machine without a GPU."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "while True: pass")
    try:
        yield
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def _ingesting(stack: RoundhouseStack) -> AsyncIterator[None]:
    """Documents are ingested as long as it is entered."""
    texts = _make_texts()
    done: list[str] = []
    is_over = asyncio.Event()

    async def feed(session: aiohttp.ClientSession) -> None:
        while not is_over.is_set():
            async with session.post(f"{stack.url}/v1/documents?wait=true", json={"text": next(texts)}) as answer:
                if answer.status == 503:  # retrieval starts still
                    await asyncio.sleep(0.1)
                    continue
                assert answer.status == 200, await answer.text()
                done.append("")

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(_LIMIT_S)) as session:
        tasks = [asyncio.create_task(feed(session)) for _ in range(AT_ONCE)]
        try:
            await until(
                "the first documents are ingested", lambda: len(done) >= AT_ONCE or _find_error(tasks), _LIMIT_S
            )
            yield
        finally:
            is_over.set()
            await asyncio.gather(*tasks)


def _find_error(tasks: Sequence[asyncio.Task[None]]) -> bool:
    return any(task.done() for task in tasks)


async def _ask_chats(port: int, questions: Any, count: int) -> list[float]:
    """Seconds to the first token of each."""
    connection: Connection
    (connection,) = await connect(port, 1)
    times = []
    for request in itertools.islice(questions, count):
        start = time.perf_counter()
        await connection.ask(request)
        times.append(connection.first_event_at - start)
    close([connection])
    return times


async def _add_all(here: RetrievalHarness, texts: Sequence[str]) -> None:
    for number, text in enumerate(texts):
        answer = await here.request("POST", "/v1/documents", {"text": text, "id": f"d{number}"})
        assert answer.status_code == 202, answer.text

    async def are_ready() -> bool:
        states = (await here.request("GET", "/v1/retrieval", is_admin=True)).json()["versions"]
        assert not states.get("failed"), states
        return bool(states.get("ready", 0) > len(texts))

    await until("the documents are searchable", are_ready, _LIMIT_S)


def _make_texts() -> Any:
    chance, words = random.Random(1), sorted(SYNONYMS)
    while True:
        yield "\n\n".join(" ".join(chance.choices(words, k=WORDS // 20)) + "." for _ in range(20))


def _make_questions(port: int) -> Any:
    chance, words = random.Random(2), sorted(SYNONYMS)
    while True:
        messages = [{"role": "user", "content": " ".join(chance.choices(words, k=QUESTION_WORDS))}]
        yield post_bytes(
            port, "", "/v1/chat/completions", model=CHAT_MODEL, messages=messages, stream=True, max_tokens=2
        )
