"""`python -m transfers`: run one transfers program until SIGTERM or SIGINT.

Exit codes: 0 ended as asked, 1 failed, 2 a setting is wrong, 3 the address is taken, 4 the models folder is in use.
Before it talks to anybody, the process gives up root's rights, and resources.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import time
from functools import partial
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from common.internal_server import ListeningServer, open_listener
from common.internal_tokens import TRANSFERS_TOKEN
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
from common.program_logs import configure_logging
from common.shared_token import SharedToken
from transfers.assembly import Transfers
from transfers.models_folder import ModelsFolder
from transfers.settings import TransfersSettings
from transfers.sharing import KEY_NAME

MEMORY_BYTES: Final = 4 * 1024**3
"""Largest address space of the process, in bytes. Downloads are written as they come, so that it needs far less."""
OPEN_FILES: Final = 1024
TOKEN_POLL_S: Final = 0.5


def limit_resources() -> None:
    """Limit this process to 4 GiB of address space (`MEMORY_BYTES`), 1024 open files, and no core files, which may hold
    a token. A limit that is lower already stays. Raises OSError or ValueError if the kernel refuses."""
    for kind, limit in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        lowest = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (lowest, lowest))


def become_owner(models: Path, writable: Path | None) -> None:
    """If this process is root, become the owner of the models folder, for good. Downloaded files then belong to the
    operator, and a fault in the code that reads strangers' bytes does not have root's rights. Does nothing if the
    folder belongs to root, or the process is not root.

    `writable`: a folder that the process must be able to write later; before, it is created if missing, and given with
    the files in it to the new owner. None: there is none. Blocks on the disk. A container needs the capabilities CHOWN,
    SETUID and SETGID for this.

    Raises:
        OSError: the models folder cannot be looked at, or the kernel refuses.
    """
    owner = models.stat()
    if os.geteuid() != 0 or owner.st_uid == 0:
        return
    if writable is not None:
        writable.mkdir(parents=True, exist_ok=True)
        for path in (writable, *writable.iterdir()):
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
    os.setgroups([])
    os.setresgid(owner.st_gid, owner.st_gid, owner.st_gid)
    os.setresuid(owner.st_uid, owner.st_uid, owner.st_uid)
    log.info("running as the owner of %s: user %d, group %d", models, owner.st_uid, owner.st_gid)


log = logging.getLogger("transfers")
_refuse = partial(refuse_start, "transfers")


def main() -> int:
    """Run one transfers program in this thread until SIGTERM, SIGINT or a failure. Return its exit code: 0 it ended as
    asked, 1 it failed, 2 a setting is wrong, 3 the address is taken, 4 the models folder is in use. The reason of a
    failed start is one line on stderr.

    Settings come from the environment. Call once per process: logging is configured, the process' priority lowered,
    and what it does not need is given up for good (`transfers.__main__`).
    """
    try:
        settings = TransfersSettings()
        address = _read_address(settings)
    except (ValidationError, ValueError) as error:
        return _refuse(EXIT_USAGE, explain_settings(error))
    return_freed_memory()
    configure_logging(settings.log_level, settings.log_format)
    for name in ("uvicorn.error", "httpx2", "httpcore2", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.WARNING)  # addresses behind redirects are signed: no line has them
    # Chat goes first wherever both want a core.
    os.nice(5)
    try:
        settings.models_folder.mkdir(parents=True, exist_ok=True)
        limit_resources()
        _await_token(settings)
        program = Transfers(settings)  # which reads what only root may read
        token_file = None if isinstance(address, Path) else settings.transfers_token_file
        become_owner(settings.models_folder, None if token_file is None else token_file.parent)
        return _run(settings, address, program)
    except BlockingIOError:
        return _refuse(EXIT_LOCKED, describe_holder(settings.models_folder))
    except ValueError as error:
        return _refuse(EXIT_USAGE, str(error))
    except OSError as error:
        return _refuse(EXIT_FAILED, f"{settings.models_folder}: {error}")


def describe_holder(models: Path) -> str:
    """Return who downloads into a models folder whose lock is taken, and what to set. Blocks on the disk."""
    holder = ModelsFolder(models, 0).read_holder()
    return (
        f"another Roundhouse ({holder or 'it does not say which'}) downloads into {models}: to go on without downloads "
        "set ROUNDHOUSE_DOWNLOADS=off, to have downloads name a folder of its own first in ROUNDHOUSE_MODELS"
    )


def _await_token(settings: TransfersSettings) -> None:
    """Wait until the files with the installation's token and this host's key are there: a host gets them when it is let
    in. Blocks."""
    folder = settings.transfers_share_certificates
    for path in (settings.transfers_share_token_file, None if folder is None else folder / KEY_NAME):
        if path is not None and not path.exists():
            log.info("waiting for %s, which this machine gets when it joins", path)
            while not path.exists():
                time.sleep(TOKEN_POLL_S)


def _read_address(settings: TransfersSettings) -> Path | tuple[str, int]:
    """Return where to listen. Raises ValueError."""
    try:
        address = split_listen_address(settings.transfers_listen)
    except ValueError as error:
        raise ValueError(f"ROUNDHOUSE_TRANSFERS_LISTEN {error}") from None
    if not isinstance(address, Path) and settings.transfers_token_file is None:
        raise ValueError("ROUNDHOUSE_TRANSFERS_TOKEN_FILE must be set where transfers listens on a port")
    return address


def _run(settings: TransfersSettings, address: Path | tuple[str, int], program: Transfers) -> int:
    if settings.hub_token_file is not None and settings.read_hub_token() is None:
        log.warning("%s has no token: gated repositories are refused", settings.hub_token_file)
    with program as transfers:
        return asyncio.run(_serve(settings, address, transfers))


async def _serve(settings: TransfersSettings, address: Path | tuple[str, int], transfers: Transfers) -> int:
    app: AsgiApp = transfers.build_app()
    if not isinstance(address, Path):
        assert settings.transfers_token_file is not None
        token = SharedToken(settings.transfers_token_file, "the token of transfers and the controller")
        token.ensure_token()  # before anybody can connect: who does has read it
        app = TokenCheck(app, token, TRANSFERS_TOKEN)
    try:
        listener = open_listener(address)
    except OSError as error:
        return _refuse(EXIT_ADDRESS, f"cannot listen on {settings.transfers_listen}: {error.strerror or error}")
    share_server = None
    if settings.transfers_share_listen is not None:
        share_address = split_listen_address(settings.transfers_share_listen)
        try:
            share_listener = open_listener(share_address)
        except OSError as error:
            listener.close()
            words = f"cannot listen on {settings.transfers_share_listen} for other hosts: {error.strerror or error}"
            return _refuse(EXIT_ADDRESS, words)
        share_server = ListeningServer(transfers.build_share_app(), share_address, share_listener, transfers.share_tls)
        log.info("other hosts get models at %s", transfers.share_url)
    ended = asyncio.Event()
    call_at_end(ended.set)
    server = ListeningServer(app, address, listener)
    log.info("models go to %s, listening on %s", settings.models_folder, settings.transfers_listen)
    await ended.wait()
    await server.close()
    if share_server is not None:
        await share_server.close()
    return 0


if __name__ == "__main__":
    open_missing_streams()
    end_program(main())
