"""Packages of others on files, vector stores, searches and embeddings: OpenAI's SDK for Node, and LangChain."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.campaigns.record import Outcome, Table
from tests.support.ci_cache import add_llama_server_to_path
from tests.support.document_clients import probe_document_clients
from tests.support.foreign_clients import SDK_NODE_PACKAGES, SDK_PYTHON_PACKAGES, install_clients

ABOUT = """
OpenAI's SDK from npm and LangChain from PyPI, unmodified, use a gateway with retrieval and a real llama-server for
embeddings: files (upload, list, retrieve, content, expiry, delete), vector stores (files, batches, polling, attributes,
chunking, pages in both directions, filters, ranking options, several queries), embeddings for LangChain's vector store
in memory, and the retriever of docs/clients.md. Tests try the Python SDK
(`tests/integration/retrieval/test_openai_files.py`).
"""
HELD = "held"


def declare_options(parser: argparse.ArgumentParser) -> None:
    """What this campaign can be told besides its seed."""
    parser.add_argument("--clients", type=Path, help="folder of the clients, where they are installed if they are not")


def run(seed: int, *, clients: Path | None = None) -> Outcome:
    """Try all of them. Nothing is random. `clients` None: they are installed for this run alone."""
    add_llama_server_to_path()
    with tempfile.TemporaryDirectory(prefix="rh", ignore_cleanup_errors=True) as folder:
        installed = install_clients(clients or Path(folder) / "clients", SDK_PYTHON_PACKAGES, SDK_NODE_PACKAGES)
        results = asyncio.run(probe_document_clients(installed, Path(folder) / "site"))
    return Outcome(tables_of(results), failures_of(results))


def tables_of(results: Mapping[str, Mapping[str, str]]) -> list[Table]:
    tried = [(client, name, result.splitlines()[0]) for client, by in results.items() for name, result in by.items()]
    return [
        Table("What was tried", ("client", "what", "result"), tried),
        Table("Versions", ("package",), [(package,) for package in (*SDK_PYTHON_PACKAGES, *SDK_NODE_PACKAGES)]),
    ]


def failures_of(results: Mapping[str, Mapping[str, str]]) -> list[str]:
    return [
        f"{client}, {name}: {result}" for client, by in results.items() for name, result in by.items() if result != HELD
    ]
