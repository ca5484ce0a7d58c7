"""A transfers program in this process, with a models folder, and a file server that it may ask."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from common.model_reference import ModelReference
from controller.schema.downloads import Download
from controller.schema.errors import RoundhouseError
from tests.support.download_site import wait_final
from tests.support.file_server import FileServer
from tests.support.wait import eventually
from transfers.assembly import Transfers
from transfers.settings import TransfersSettings
from transfers.sources.source_set import read_reference


def make_transfers(models: Path, server: FileServer, **settings: Any) -> Transfers:
    """Return a program, to be entered, that has room on any disk."""
    said = {"transfers_keep_free_gb": 0.0, "transfers_ollama_registry": server.url, "hub_endpoint": server.url}
    return Transfers(
        TransfersSettings.model_validate(
            {"models": str(models), "transfers_allow_hosts": f"127.0.0.1:{server.port}", **said, **settings}
        )
    )


def add_file(server: FileServer, path: str, content: bytes) -> ModelReference:
    server.files[path] = content
    return read_reference(f"{server.url}{path}#sha256={hashlib.sha256(content).hexdigest()}")


def wait_for(what: str, look: Callable[[], Any]) -> Any:
    """Return the first true answer of `look`. Raises AssertionError where none comes in time."""
    return eventually(what, look)


def wait_for_end(transfers: Transfers, download: str) -> Download:
    return wait_final(transfers.board, download)


def fetch(transfers: Transfers, reference: ModelReference) -> Download:
    """Order a download, and return it when it has ended."""
    return wait_for_end(transfers, transfers.board.order(reference, include_pickle=False)[0].id)


@contextmanager
def refused(code: str, *words: str) -> Iterator[None]:
    """What the block does is an error with this code, whose message has these words."""
    with pytest.raises(RoundhouseError) as raised:
        yield
    assert raised.value.entry.code == code, raised.value
    assert all(each in raised.value.message for each in words), raised.value.message


def error_code(download: Download) -> str | None:
    """Why a download failed; None: it did not."""
    return None if download.error is None else download.error.code
