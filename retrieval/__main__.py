"""`python -m retrieval`: run one retrieval program until SIGTERM or SIGINT.

Exit codes: 0 ended as asked, 1 failed, 2 a setting is wrong, 3 the address is taken, 4 the state folder is in use.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from functools import partial
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from common.atomic_write import narrow_files
from common.internal_server import ListeningServer, open_listener
from common.internal_tokens import RETRIEVAL_TOKEN
from common.line_writer import end_program, open_missing_streams
from common.listening import split_listen_address
from common.processes import return_freed_memory
from common.program import (
    EXIT_ADDRESS,
    EXIT_FAILED,
    EXIT_LOCKED,
    EXIT_USAGE,
    AsgiApp,
    TokenCheck,
    call_at_end,
    explain_settings,
    refuse_start,
)
from common.program_logs import configure_logging, keep_log_file
from common.shared_token import SharedToken, read_token
from common.trusted_clock import TrustedClock
from retrieval.assembly import Retrieval, data_folder
from retrieval.embedding import GatewayModelClient
from retrieval.parsing.pool import open_parser
from retrieval.settings import RetrievalSettings
from retrieval.vector_store.base import VectorStore, VectorStoreError
from retrieval.vector_store.edge.store import EdgeStore


async def open_vector_store(settings: RetrievalSettings, folder: Path) -> VectorStore:
    """Open the store: a Qdrant server where `settings.qdrant_url` is set, else Qdrant Edge in `folder`/edge.

    The server is not asked yet, so one that is not reachable raises nothing here. Raises VectorStoreError where the
    folder is in use or cannot be opened. The caller closes the store.
    """
    if settings.qdrant_url is not None:
        from retrieval.vector_store.server import ServerStore  # 40 MiB that the embedded store does without

        return ServerStore.connect(settings.qdrant_url, settings.qdrant_api_key)
    return await EdgeStore.open(folder / "edge")


log = logging.getLogger("retrieval")
_refuse = partial(refuse_start, "retrieval")

CLOCK_NAME: Final = "clock.json"
"""The record of `TrustedClock`, beside the catalog."""


def main() -> int:
    """Run one retrieval program in this thread until SIGTERM, SIGINT or a failure. Return its exit code: 0 it ended as
    asked, 1 it failed, 2 a setting is wrong, 3 the address is taken, 4 the state folder is in use. The reason of a
    failed start is one line on stderr; a later failure is in the log.

    Settings come from the environment. Call once per process: logging is configured, and the process' priority lowered.
    """
    try:
        settings = RetrievalSettings()
        address = split_listen_address(settings.retrieval_listen)
    except (ValidationError, ValueError) as error:
        return _refuse(EXIT_USAGE, explain_settings(error))
    return_freed_memory()
    configure_logging(settings.log_level, settings.log_format)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    # The vector store makes its files by itself, and they hold what the documents say.
    os.umask(0o077)
    try:
        settings.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        return _refuse(EXIT_USAGE, f"ROUNDHOUSE_STATE: {settings.state} cannot be made: {error.strerror or error}")
    narrow_files(settings.state)
    keep_log_file(settings.state, "retrieval", settings.log_mib, settings.log_format)
    # Chat goes first wherever both want a core.
    os.nice(5)
    try:
        return asyncio.run(_serve(settings, address))
    except VectorStoreError as error:
        return _refuse(EXIT_LOCKED, str(error))
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
            return _refuse(EXIT_LOCKED, f"another process uses {data_folder(settings)}")
        return _refuse(EXIT_FAILED, f"{data_folder(settings)}: {error}")
    except (OSError, sqlite3.Error) as error:
        return _refuse(EXIT_FAILED, f"{data_folder(settings)}: {error}")


async def _serve(settings: RetrievalSettings, address: Path | tuple[str, int]) -> int:
    token = SharedToken(settings.token_file, "the token of retrieval and the gateway")
    token.ensure_token()  # before anybody can connect: who does has read it
    try:
        listener = open_listener(address)
    except OSError as error:
        return _refuse(EXIT_ADDRESS, f"cannot listen on {settings.retrieval_listen}: {error.strerror or error}")
    folder = data_folder(settings)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    store = await open_vector_store(settings, folder)
    parser = open_parser(settings)
    async with (
        GatewayModelClient(
            settings.gateway_url, lambda: read_token(settings.token_file), settings.retrieval_concurrency
        ) as models,
        Retrieval(settings, store, parser, models, TrustedClock(folder / CLOCK_NAME)) as retrieval,
    ):
        ended = asyncio.Event()
        call_at_end(ended.set)
        app: AsgiApp = retrieval.build_app()
        if not isinstance(address, Path):
            app = TokenCheck(app, token, RETRIEVAL_TOKEN)
        try:
            server = ListeningServer(app, address, listener)
        except OSError as error:
            return _refuse(EXIT_ADDRESS, f"cannot listen on {settings.retrieval_listen}: {error.strerror or error}")
        log.info("vectors in %s, listening on %s", store.kind, settings.retrieval_listen)
        waits = [asyncio.create_task(each.wait()) for each in (ended, retrieval.has_failed)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        await server.close()
        return EXIT_FAILED if retrieval.has_failed.is_set() else 0


if __name__ == "__main__":
    open_missing_streams()
    end_program(main())
