"""A file server, and a transfers program that may ask it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.transfers_harness import FileServer, file_server, make_transfers
from transfers.assembly import Transfers


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server() as running:
        yield running


@pytest.fixture
def transfers(tmp_path: Path, server: FileServer) -> Iterator[Transfers]:
    """Its models folder is `tmp_path`, from which it may also take local files."""
    with make_transfers(tmp_path, server, transfers_local_folders=str(tmp_path)) as running:
        yield running
        server.gate.set()
