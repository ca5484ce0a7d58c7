"""Which gateway this process is: an id kept in the state folder, and the number of the start."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import secrets
from pathlib import Path
from typing import Final

from pydantic import BaseModel, Field, ValidationError

from common.atomic_write import write_atomic
from common.processes import read_host, read_own_start
from controller.schema.routing import GatewayProcess

logger = logging.getLogger(__name__)

FILE_NAME: Final = "gateway.json"


class GatewayFile(BaseModel):
    """The file gateway.json: the gateway's id, and the number of its last start."""

    schema_version: int = 1
    id: str = Field(pattern=r"^gw-[0-9a-f]{16}$")
    epoch: int = Field(ge=0)


def take_identity(folder: Path) -> GatewayProcess:
    """Return this process's identity, and count its start in `folder`/gateway.json. Blocks. Call once per process.

    Without a folder (of a gateway that stores nothing), or if it cannot be written, which is logged, the process is a
    gateway of its own: where it follows one that was killed, the controller must first see that one gone. A damaged
    file is replaced, which is logged, too.
    """
    try:
        counted = _count_start(folder) if folder.exists() else GatewayFile(id=_new_id(), epoch=0)
    except OSError as error:
        logger.warning(
            "%s cannot be written (%s): this gateway has another id after each restart, and the controller may refuse "
            "it for half a minute after it was killed. Set ROUNDHOUSE_STATE to a folder that can be written",
            folder / FILE_NAME,
            error.strerror or error,
        )
        counted = GatewayFile(id=_new_id(), epoch=0)
    return GatewayProcess(
        id=counted.id, epoch=counted.epoch, pid=os.getpid(), start_ticks=read_own_start(), host=read_host()
    )


def _count_start(folder: Path) -> GatewayFile:
    path = folder / FILE_NAME
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two that start at once get two numbers
        try:
            known = GatewayFile.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            known = GatewayFile(id=_new_id(), epoch=0)
        except ValidationError:
            logger.warning("%s is damaged: this gateway has another id from now on", path)
            known = GatewayFile(id=_new_id(), epoch=0)
        counted = known.model_copy(update={"epoch": known.epoch + 1})
        _write_count(path, counted.model_dump_json().encode())
    finally:
        os.close(lock)
    return counted


def _write_count(path: Path, content: bytes) -> None:
    """Replace the file, also on a full disk, where a new one finds no room: there the old one is written over."""
    try:
        write_atomic(path, content)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not path.exists():
            raise
        with path.open("r+b") as file:
            file.write(content)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())


def _new_id() -> str:
    return f"gw-{secrets.token_hex(8)}"
