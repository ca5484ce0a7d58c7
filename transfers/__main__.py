"""`python -m transfers`: run one transfers program until SIGTERM or SIGINT.

Exit codes: 0 ended as asked, 1 failed, 2 a setting is wrong, 3 the address is taken, 4 the models folder is in use.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from common.internal_server import ListeningServer, open_listener
from common.line_writer import LineWriter, end_program, open_missing_streams
from common.processes import return_freed_memory
from common.program_address import split_listen_address
from common.program_logs import configure_logging
from common.shared_token import SharedToken
from transfers.api.app import AsgiApp, TokenCheck
from transfers.assembly import Transfers
from transfers.confinement import become_owner, limit_resources
from transfers.settings import TransfersSettings

log = logging.getLogger("transfers")

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_ADDRESS: Final = 3
EXIT_LOCKED: Final = 4


def main() -> int:
    """Run one transfers program in this thread until SIGTERM, SIGINT or a failure. Return its exit code: 0 it ended as
    asked, 1 it failed, 2 a setting is wrong, 3 the address is taken, 4 the models folder is in use. The reason of a
    failed start is one line on stderr.

    Settings come from the environment. Call once per process: logging is configured, the process' priority lowered,
    and what it does not need is given up for good (`transfers.confinement`).
    """
    try:
        settings = TransfersSettings()
        address = _read_address(settings)
    except (ValidationError, ValueError) as error:
        return _fail(EXIT_USAGE, _first_problem(error))
    return_freed_memory()
    configure_logging(settings.log_level, settings.log_format)
    for name in ("uvicorn.error", "httpx2", "httpcore2", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.WARNING)  # addresses behind redirects are signed: no line has them
    # Chat goes first wherever both want a core.
    os.nice(5)
    try:
        settings.models_folder.mkdir(parents=True, exist_ok=True)
        limit_resources()
        token_file = None if isinstance(address, Path) else settings.transfers_token_file
        become_owner(settings.models_folder, None if token_file is None else token_file.parent)
        return _run(settings, address)
    except BlockingIOError:
        return _fail(EXIT_LOCKED, f"another transfers program uses {settings.models_folder}")
    except OSError as error:
        return _fail(EXIT_FAILED, f"{settings.models_folder}: {error}")


def _read_address(settings: TransfersSettings) -> Path | tuple[str, int]:
    """Return where to listen. Raises ValueError."""
    try:
        address = split_listen_address(settings.transfers_listen)
    except ValueError as error:
        raise ValueError(f"ROUNDHOUSE_TRANSFERS_LISTEN {error}") from None
    if not isinstance(address, Path) and settings.transfers_token_file is None:
        raise ValueError("ROUNDHOUSE_TRANSFERS_TOKEN_FILE must be set where transfers listens on a port")
    return address


def _run(settings: TransfersSettings, address: Path | tuple[str, int]) -> int:
    if settings.hub_token_file is not None and settings.read_hub_token() is None:
        log.warning("%s has no token: gated repositories are refused", settings.hub_token_file)
    with Transfers(settings) as transfers:
        return asyncio.run(_serve(settings, address, transfers))


async def _serve(settings: TransfersSettings, address: Path | tuple[str, int], transfers: Transfers) -> int:
    app: AsgiApp = transfers.build_app()
    if not isinstance(address, Path):
        assert settings.transfers_token_file is not None
        token = SharedToken(settings.transfers_token_file, "the token of transfers and the controller")
        token.ensure_token()  # before anybody can connect: who does has read it
        app = TokenCheck(app, token)
    try:
        listener = open_listener(address)
    except OSError as error:
        return _fail(EXIT_ADDRESS, f"cannot listen on {settings.transfers_listen}: {error.strerror or error}")
    ended = asyncio.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signal_number, ended.set)
    server = ListeningServer(app, address, listener)
    log.info("models go to %s, listening on %s", settings.models_folder, settings.transfers_listen)
    await ended.wait()
    await server.close()
    return 0


def _first_problem(error: ValidationError | ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    variable = "_".join(["ROUNDHOUSE", *(str(step).upper() for step in first["loc"])]) if first["loc"] else ""
    message = first["msg"].removeprefix("Value error, ")
    return f"{variable}: {message}" if variable else message


def _fail(code: int, message: str) -> int:
    LineWriter(sys.stderr).write_line(f"roundhouse transfers: {message}")
    return code


if __name__ == "__main__":
    open_missing_streams()
    end_program(main())
