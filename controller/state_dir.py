"""The state folder: the identity of an instance, and what a restarted controller must know again.

The folder has one lock. Its files are replaced atomically, and each has a `schema_version`:

    lock            held by the one controller (or `roundhouse down`) that may act
    identity.json   instance id, and the secret that replica tokens are derived from
    epoch.json      counts the starts of controllers; orders routing tables
    last-gateway.json  the gateway's process that was taken last; may be lost
    memory.json     paused, autoload demand, evictions, models that were loaded, replicas that were ready, overrides and
                    declarations by operators, attempt numbers

`observed-memory.json` belongs to controller.memory_history, and may be lost.

A controller starts on a full disk too, if the folder has an identity: changes then stay in the controller's memory,
and its status names them.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from common.atomic_write import narrow_files, overwrite, write_atomic
from contract.declarations import RuntimeDeclarations
from contract.downloads import RECORDS_FOLDER, DownloadRecord
from contract.model_reference import InvalidReferenceError, parse_reference
from contract.override import Evicted, Override
from contract.routing import GatewayProcess
from contract.status import SCHEMA_VERSION
from controller.state import AttemptNumbers

log = logging.getLogger(__name__)


def read_records(models_folder: Path) -> list[DownloadRecord]:
    """Return the records of downloads into a models folder, sorted by id. Blocks. What cannot be read is left out, with
    a warning in the log; without any, the list is empty."""
    records = []
    try:
        paths = sorted((models_folder / RECORDS_FOLDER).glob("dl_*.json"))
    except OSError as error:
        log.warning("the records of downloads cannot be listed: %s", error)
        return []
    for path in paths:
        try:
            records.append(DownloadRecord.model_validate_json(path.read_bytes()))
        except FileNotFoundError:
            continue  # it was just removed
        except (OSError, ValidationError) as error:
            log.warning("the record of a download cannot be read: %s: %s", path, error)
    return records


def find_by_path(records: Iterable[DownloadRecord], path: str) -> list[DownloadRecord]:
    """Return the downloads that put a file at `path`, or a file below the folder `path`, into the models folder. `path`
    is relative to the models folder."""
    return [record for record in records if any(is_below(each.path, path) for each in record.placed)]


def find_by_reference(records: Sequence[DownloadRecord], text: str) -> DownloadRecord | None:
    """Return the newest download that was ordered by the reference `text`, else the newest whose pinned reference it
    is, or whose wanted one while nothing of it was ever finished. None: there is neither, or `text` is no reference."""
    try:
        canonical = str(parse_reference(text))
    except InvalidReferenceError:
        return None
    matching = [record for record in records if canonical in (record.reference, record.pinned or record.wanted)]
    return max(matching, key=lambda each: (each.reference == canonical, each.created_at), default=None)


def is_below(path: str, folder: str) -> bool:
    """Return whether `path` is `folder` or lies below it. Only the texts are compared; the disk is not read."""
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


LOCK_NAME: Final = "lock"
IDENTITY_NAME: Final = "identity.json"
EPOCH_NAME: Final = "epoch.json"
MEMORY_NAME: Final = "memory.json"
LAST_GATEWAY_NAME: Final = "last-gateway.json"
OBSERVED_MEMORY_NAME: Final = "observed-memory.json"
"""Belongs to controller.memory_history."""


class StateError(Exception):
    """The state folder cannot be used: it cannot be written, a file cannot be read, is damaged or of a newer version,
    or it belongs to another instance. The message says why, to the operator. Its subclass StateLockedError is raised,
    too."""


class StateLockedError(StateError):
    """Another process holds the lock of the state folder. It is a StateError."""


class Identity(BaseModel):
    """The identity of an instance, the file identity.json: `instance` is part of labels and names, `secret` (hex) the
    key of replica tokens, which neither `repr` nor an error shows."""

    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)

    schema_version: int = SCHEMA_VERSION
    instance: str = Field(pattern=r"^[a-z0-9]{1,16}$")
    secret: str = Field(pattern=r"^([0-9a-fA-F]{2})+$")

    def __repr__(self) -> str:
        return f"Identity(instance={self.instance!r})"


class Epoch(BaseModel):
    """The file epoch.json: the number of the last start of a controller on the folder. It counts the starts, except
    after it could not be stored or was lost: then it goes on from a Unix time in milliseconds."""

    schema_version: int = SCHEMA_VERSION
    epoch: int = 0


class LastGateway(BaseModel):
    """The file last-gateway.json: the process of the gateway that was accepted last; None: it has said goodbye."""

    schema_version: int = SCHEMA_VERSION
    process: GatewayProcess | None = None


class SleepRecord(BaseModel):
    """Stored state of one replica that can sleep. Times are Unix seconds."""

    canary: str
    """Text that the engine answered to the canary request when it was first ready. It must come again after a wake."""
    since: float | None = None
    """Time since which the replica sleeps; None: it is awake."""
    woken_at: float | None = None
    """Time at which the last wake ended; None: there was none."""
    wake_s: float | None = None
    """Seconds that the last wake took; None: there was none."""


class StoredState(BaseModel):
    """What a restarted controller must know and cannot observe. Keys are model names, those of `ready_since` and
    `sleepers` replica names; times are Unix time in seconds. `rested` holds the evictions."""

    model_config = ConfigDict(extra="ignore")

    schema_version: int = SCHEMA_VERSION
    paused: bool = False
    demand: dict[str, float] = Field(default_factory=dict)
    loaded_once: list[str] = Field(default_factory=list)
    ready_since: dict[str, float] = Field(default_factory=dict)
    first_declared_at: dict[str, float] = Field(default_factory=dict)
    overrides: dict[str, Override] = Field(default_factory=dict)
    rested: dict[str, Evicted] = Field(default_factory=dict)
    declarations: RuntimeDeclarations = Field(default_factory=RuntimeDeclarations)
    """Models and keys that operators declared at run time."""
    discovered: dict[str, dict[str, JsonValue]] = Field(default_factory=dict, exclude_if=lambda found: not found)
    """Fields of the models whose files were last found in the models folders without a declaration, by name."""
    keys_used: dict[str, float] = Field(default_factory=dict, exclude_if=lambda used: not used)
    """When each API key was last used, by its name."""
    sleepers: dict[str, SleepRecord] = Field(default_factory=dict, exclude_if=lambda sleepers: not sleepers)
    """Replicas that can sleep, by replica name."""
    drained_hosts: dict[str, float] = Field(default_factory=dict, exclude_if=lambda drained: not drained)
    """Hosts that an operator drains, by name, to the time of that."""
    attempts: AttemptNumbers | None = None
    """Highest attempt number of each replica; None: none are stored."""


AnyModel = TypeVar("AnyModel", bound=BaseModel)


class StateDir:
    """An opened and locked state folder. A controller has one from its start to its end; `open_folder` makes it, and
    `close` gives the lock back. Methods block."""

    def __init__(self, folder: Path, lock: int, identity: Identity, *, is_new: bool) -> None:
        """`lock`: the descriptor that holds the lock. `is_new`: no controller has worked on this folder before."""
        self.folder = folder
        self.identity = identity
        self._is_new = is_new
        self._lock = lock
        self._unsaved_epoch: Epoch | None = None
        self._is_gateway_unsaved = False

    @classmethod
    def open_folder(cls, folder: Path, instance: str | None = None) -> StateDir:
        """Lock the folder, and make it if it is missing. Blocks. The caller must close the result. `instance` names the
        instance of a new folder; None: a random name. A folder that has an identity keeps it. Raises StateLockedError
        if another process holds the lock, and StateError if the folder or its identity cannot be used, `instance` is
        not a valid id, or the folder has another instance than `instance`. Nothing is locked then."""
        lock = lock_state_folder(folder)
        narrow_files(folder)
        try:
            identity = _read_file(folder / IDENTITY_NAME, Identity)
            return cls(folder, lock, _settle_identity(folder, identity, instance), is_new=identity is None)
        except BaseException:
            os.close(lock)
            raise

    @property
    def instance(self) -> str:
        """The id of this instance, as in labels and names."""
        return self.identity.instance

    @property
    def secret(self) -> bytes:
        """The key that replica tokens are derived from, as bytes."""
        return bytes.fromhex(self.identity.secret)

    def next_epoch(self, now: float) -> int:
        """Return the number of this start, greater than that of every earlier one. `now` is Unix time in seconds.

        Where the number cannot be stored, or the file of earlier numbers is gone, it is `now` in milliseconds: greater
        than any count of starts, and than the number of an earlier start that could not be stored. Call `save_epoch` to
        try to store it again. Call `next_epoch` once per start. Raises StateError if the file of earlier numbers is
        damaged or cannot be read, but no OSError for one that cannot be written.
        """
        stored = _read_file(self.folder / EPOCH_NAME, Epoch)
        # A gateway that heard of earlier ones takes no table with a lower one.
        last = stored.epoch if stored is not None else 0 if self._is_new else int(now * 1000) - 1
        self._unsaved_epoch = epoch = Epoch(epoch=last + 1)
        if not self.save_epoch():
            self._unsaved_epoch = epoch = Epoch(epoch=max(epoch.epoch, int(now * 1000)))
        return epoch.epoch

    def save_epoch(self) -> bool:
        """Store the number of this start if it is not stored yet. Blocks. Returns whether it is stored now; a failed
        write raises nothing. Before `next_epoch`, there is nothing to store, and the result is True."""
        if self._unsaved_epoch is not None:
            path = self.folder / EPOCH_NAME
            try:
                try:
                    _write_file(path, self._unsaved_epoch)
                except OSError:
                    overwrite(path, self._unsaved_epoch.model_dump_json().encode())
            except OSError as error:
                log.debug("%s cannot be written: %s", path, error)
                return False
            self._unsaved_epoch = None
        return True

    @property
    def is_epoch_saved(self) -> bool:
        """Whether the number of this start is stored; true before `next_epoch`."""
        return self._unsaved_epoch is None

    def load_memory(self) -> StoredState:
        """Read what the last controller stored, or return defaults if it stored nothing. Blocks. Raises StateError for
        a file that is damaged, cannot be read, or was written by a newer version."""
        return _read_file(self.folder / MEMORY_NAME, StoredState) or StoredState()

    def save_memory(self, memory: StoredState) -> None:
        """Store what the next controller must know, in place of what was stored before. Blocks. Raises OSError if the
        file cannot be written; what was stored before is then unchanged."""
        _write_file(self.folder / MEMORY_NAME, memory)

    def load_gateway(self) -> GatewayProcess | None:
        """Return the gateway's process that was accepted last; None: it has said goodbye, or the file is gone or cannot
        be read, which is logged. Blocks."""
        try:
            stored = _read_file(self.folder / LAST_GATEWAY_NAME, LastGateway)
        except StateError as error:
            log.warning("%s", error)
            return None
        return None if stored is None else stored.process

    def save_gateway(self, process: GatewayProcess | None) -> bool:
        """Store which gateway's process is accepted (None: the last one said goodbye), and return whether that is done.
        Blocks. A failed write raises nothing; the first of several in a row is logged."""
        try:
            _write_file(self.folder / LAST_GATEWAY_NAME, LastGateway(process=process))
        except OSError as error:
            if not self._is_gateway_unsaved:
                log.warning("%s cannot be written: %s", self.folder / LAST_GATEWAY_NAME, error.strerror or error)
            self._is_gateway_unsaved = True
            return False
        self._is_gateway_unsaved = False
        return True

    def close(self) -> None:
        """Give the lock of the folder back. Call it once: a second call raises OSError or closes another file."""
        os.close(self._lock)


def lock_state_folder(folder: Path) -> int:
    """Lock the folder, and make it if it is missing. Returns the file descriptor that holds the lock; closing it, or
    the end of the process, releases the lock. Does not wait for a lock that is held. Raises StateLockedError if another
    process, or this one, holds the lock, and StateError if the folder cannot be used."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StateError(f"state folder {folder} cannot be used: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(lock)
        raise StateLockedError(f"state folder {folder} is in use by process {holder}") from error
    _note_holder(lock)
    return lock


def _note_holder(lock: int) -> None:
    """Write this process's id into the lock file, for the error of the next one that wants the lock; best effort."""
    holder = f"{os.getpid()}\n".encode()
    try:
        # Over the last holder's number, and only then cut: a file that is emptied first may not get its room back.
        os.pwrite(lock, holder, 0)
        os.ftruncate(lock, len(holder))
    except OSError:
        with suppress(OSError):
            os.ftruncate(lock, 0)  # rather nobody than somebody else


def _settle_identity(folder: Path, identity: Identity | None, instance: str | None) -> Identity:
    """Return the folder's identity, after making and storing one where it has none. Raises StateError."""
    path = folder / IDENTITY_NAME
    if identity is None:
        try:
            identity = Identity(instance=instance or secrets.token_hex(3), secret=secrets.token_hex(32))
        except ValidationError as error:
            raise StateError(f"instance {instance!r} is not 1 to 16 lower case letters and digits") from error
        try:
            _write_file(path, identity)
        except OSError as error:
            # Engines of an instance that nobody remembers could never be found again.
            raise StateError(f"{path} cannot be written: {error.strerror or error}") from error
    elif instance is not None and instance != identity.instance:
        raise StateError(f"{path} says instance {identity.instance}, the settings say {instance}")
    return identity


def _read_file(path: Path, model: type[AnyModel]) -> AnyModel | None:
    try:
        content: Mapping[str, Any] = json.loads(path.read_bytes())
        version = content["schema_version"]
        if version > SCHEMA_VERSION:
            raise StateError(f"{path} was written by a newer Roundhouse (schema_version {version})")
        return model.model_validate(content)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, RecursionError, ValidationError) as error:
        raise StateError(f"{path} is damaged ({error}); restore it or move it away") from error


def _write_file(path: Path, model: BaseModel) -> None:
    write_atomic(path, model.model_dump_json().encode())
