"""Embeddings for measurements: by the backend `onnx` in this process, and kept in a file, so that a measurement that is
repeated does not compute them again."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
from argparse import ArgumentParser
from array import array
from collections.abc import Sequence
from pathlib import Path

from retrieval.embedding.client import ModelClient
from worker.engine import Job
from worker.engines import onnx
from worker.metrics import Counters


class CachedModels:
    """A `ModelClient` that asks another one for what the file does not have. Use it as a context manager."""

    def __init__(self, models: ModelClient, path: Path, weights: str) -> None:
        """`weights`: what tells the model's weights from those of others, such as their hash."""
        self._models = models
        self._weights = weights
        self._database = sqlite3.connect(path)
        self._database.execute("CREATE TABLE IF NOT EXISTS vectors (text BLOB PRIMARY KEY, vector BLOB) WITHOUT ROWID")
        self.computed = 0
        """Texts that the other one was asked for."""

    def __enter__(self) -> CachedModels:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    async def embed_texts(self, model: str, texts: Sequence[str], *, is_background: bool) -> list[Sequence[float]]:
        keys = [hashlib.sha256(f"{self._weights}\n{text}".encode()).digest() for text in texts]
        found = {key: vector for key in keys if (vector := self._read(key)) is not None}
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in found}
        if missing:
            made = await self._models.embed_texts(model, list(missing.values()), is_background=is_background)
            self.computed += len(made)
            found |= {key: array("f", vector) for key, vector in zip(missing, made, strict=True)}
            rows = [(key, found[key].tobytes()) for key in missing]
            self._database.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?)", rows)
            self._database.commit()
        return [found[key].tolist() for key in keys]

    async def rank_passages(self, model: str, query: str, passages: Sequence[str]) -> list[float]:
        return await self._models.rank_passages(model, query, passages)

    def _read(self, key: bytes) -> array[float] | None:
        row = self._database.execute("SELECT vector FROM vectors WHERE text = ?", (key,)).fetchone()
        return None if row is None else array("f", row[0])


class OnnxModels:
    """A `ModelClient` with one model of a worker's engine, for every name. One request at a time."""

    def __init__(self, model: Path, tokenizer: Path, max_tokens: int) -> None:
        """Load the model. Texts are cut after `max_tokens`. Raises LoadError."""
        parser = ArgumentParser()
        onnx.add_arguments(parser)
        flags = ["--model", str(model), "--tokenizer", str(tokenizer), "--max-tokens", str(max_tokens)]
        self._engine = onnx.create(parser.parse_args(flags))
        self._engine.load_model()
        self._counters = Counters()
        self._computing = asyncio.Lock()

    async def embed_texts(self, model: str, texts: Sequence[str], *, is_background: bool) -> list[Sequence[float]]:
        async with self._computing:
            vectors = await asyncio.to_thread(self._engine.embed_texts, list(texts), Job(self._counters))
        return list(vectors)

    async def rank_passages(self, model: str, query: str, passages: Sequence[str]) -> list[float]:
        raise NotImplementedError("it is no rerank model")
