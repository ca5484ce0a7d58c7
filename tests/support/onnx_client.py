"""Embeddings by the engine of the backend `onnx` in this process: what a worker answers, without the worker."""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from worker.engine import Job
from worker.engines import onnx
from worker.metrics import Counters


class OnnxModels:
    """A `ModelClient` with one model, for every name. One request at a time."""

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
