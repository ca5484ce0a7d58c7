"""Packages of others that keep and search documents through a gateway and a retrieval program, unmodified."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from contract.routing import ModelRoute
from tests.fakes.fake_controller import route
from tests.support import installed_engines, langchain_probe
from tests.support.foreign_clients import ForeignClients
from tests.support.retrieval_harness import documents_site
from worker.clockwork import make_model

MODEL: Final = "embed"
TOKEN: Final = "replica-token"
PAGE: Final = Path(__file__).parents[2] / "docs" / "clients.md"
"""Where the retriever for LangChain is."""
NODE_PROBE: Final = Path(__file__).with_name("file_search_probe.mjs")


async def probe_document_clients(clients: ForeignClients, folder: Path) -> Mapping[str, Mapping[str, str]]:
    """Return, by client, what was tried to "held" or to what was wrong. The embedding model is a real llama-server's;
    it also makes the vectors of retrieval."""
    folder.mkdir(parents=True)
    make_model(folder / "m.gguf")
    # A chunk must fit the physical batch, and this model's tokens are letters, more or less.
    flags = ("--embeddings", "--pooling", "mean", "--ubatch-size", "4096", "--batch-size", "4096")
    with installed_engines.started("binary", folder, MODEL, folder / "m.gguf", *flags, token=TOKEN) as worker:
        worker.ready()
        async with documents_site(folder / "state", _embedder(worker.port), RETRIEVAL_EMBEDDING_MODEL=MODEL) as site:
            node = (clients.node_folder / "node", NODE_PROBE, site.url, clients.node_packages)
            langchain = (clients.python, langchain_probe.__file__, site.url, MODEL, PAGE)
            return {
                "OpenAI's SDK for Node": await _run_probe(*node),
                "LangChain": await _run_probe(*langchain),
            }


def _embedder(port: int) -> ModelRoute:
    return route(
        MODEL,
        [f"http://127.0.0.1:{port}"],
        token=TOKEN,
        served_name=f"inner-{MODEL}",
        apis=("/v1/embeddings", "/tokenize"),
    )


async def _run_probe(*command: str | Path) -> Mapping[str, str]:
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"PATH": os.environ["PATH"], "NO_PROXY": "127.0.0.1"},
    )
    output, problems = await process.communicate()
    if not output.strip():
        return {"the probe itself": problems.decode()[-2000:]}
    results: dict[str, str] = json.loads(output.splitlines()[-1])
    return results
