"""Serves model files to other hosts. Keeps the hashes of files, so that each is read once."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import ssl
import stat
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from common.atomic_write import write_atomic
from contract.downloads import SharedFile, SharedModel
from contract.errors import RoundhouseError
from contract.model_reference import validate_file_path
from transfers.fetch import StoppedError, hash_file
from transfers.models_folder import OWN_FOLDER, ModelsFolder
from transfers.sources.model_files import are_of_one_set

log = logging.getLogger(__name__)

KEY_NAME: Final = "host.key"
_KEY_WORDS: Final = b"roundhouse: models of hosts"
_OUTSIDE: Final = ("_data", ".data")
"""Suffixes of the files in which exporters keep weights of an ONNX model."""
_TOKENIZERS: Final = ("tokenizer.json", "vocab.txt")
"""Files of which, or of one `*-vocab.txt`, an ONNX model needs one beside it."""


def derive_share_token(token: str) -> str:
    """Return what hosts show to each other for files: it opens the models folders alone, while the installation's
    token, of which it is made, runs programs on every host."""
    return hmac.new(token.encode(), _KEY_WORDS, hashlib.sha256).hexdigest()


def load_host_certificate(folder: Path, purpose: ssl.Purpose) -> ssl.SSLContext:
    """Return a context for connections between hosts, in which both sides show a certificate of the installation's
    authority. `folder` has `ca.crt`, `host.crt` and `host.key`. `purpose`: whom to check, as for
    `ssl.create_default_context`. Blocks. Raises OSError (ssl.SSLError is one) if a file cannot be used."""
    context = ssl.create_default_context(purpose, cafile=str(folder / "ca.crt"))
    context.load_cert_chain(folder / "host.crt", folder / KEY_NAME)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


@dataclass(slots=True)
class DigestStore:
    """SHA-256 of files by path, size, time of the last change and inode, so that each file is read once. Safe for
    threads. `file`: where they are kept; None: in memory alone."""

    file: Path | None = None
    _known: dict[str, tuple[int, int, int, str]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def open(self) -> None:
        """Read what was kept, of files that are there. A file that cannot be read is as if it were empty. Blocks."""
        with suppress(OSError, ValueError, TypeError, AttributeError):
            found = json.loads(self.file.read_bytes()) if self.file is not None else {}
            self._known = {
                path: (int(size), int(mtime), int(inode), str(sha256))
                for path, (size, mtime, inode, sha256) in found.items()
                if os.path.exists(path)  # noqa: PTH110 - of a text
            }

    def find(self, path: Path, status: os.stat_result) -> str | None:
        """Return the hash of the file at an absolute path that has this status now; None: it is not known."""
        known = self._known.get(str(path))
        is_same = known is not None and known[:3] == (status.st_size, status.st_mtime_ns, status.st_ino)
        return known[3] if known is not None and is_same else None

    def note(self, path: Path, status: os.stat_result, sha256: str) -> None:
        """Keep the hash of the file that has this status. Blocks. A store that cannot be written raises nothing."""
        with self._lock:
            self._known[str(path)] = (status.st_size, status.st_mtime_ns, status.st_ino, sha256)
            if self.file is not None:
                with suppress(OSError):
                    write_atomic(self.file, json.dumps(self._known).encode(), durable=False)


FindPartial = Callable[[str, str, int, int], Path | None]
"""Takes a path below the models folder, a SHA-256, and the first byte and that after the last one; returns the partial
file that has these bytes of this content, or None."""


class SharedModels:
    """The files below the models folders, as other hosts may read them. Links are not followed, and nothing outside the
    folders is read. Methods may be called from several threads, and block on the disk."""

    def __init__(self, folders: Sequence[ModelsFolder], digests: DigestStore, find_partial: FindPartial) -> None:
        """`folders`: in the order in which a path is looked for."""
        self._folders = folders
        self._digests = digests
        self._find_partial = find_partial
        self._hashing: set[Path] = set()
        self._unread: dict[Path, str] = {}
        """Why the last try to hash a file failed, until somebody who asks was told."""
        self._stopped = threading.Event()
        self._threads = ThreadPoolExecutor(1, "digest")

    def close(self) -> None:
        """End the reading of files. Does not wait."""
        self._stopped.set()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def list_model(self, path: str) -> SharedModel:
        """Return the files of the model at a path below the models folders. Those whose hash is not known yet are read
        in the background, one after the other.

        Raises:
            RoundhouseError: `source_not_found`: nothing is there, there is a symbolic link, which is not followed, or a
                file could not be read since somebody asked last.
            OSError: a folder cannot be read.
        """
        for folder in self._folders:
            try:
                is_folder, names = _list_names(folder, path)
            except FileNotFoundError:
                continue
            return SharedModel(files=[self._describe(folder, name) for name in names], is_folder=is_folder)
        raise RoundhouseError("source_not_found", f"There is no {path!r:.300} in the models folder.")

    def _describe(self, folder: ModelsFolder, name: str) -> SharedFile:
        status = folder.find_file(name)
        if status is None:
            raise RoundhouseError("source_not_found", f"{name!r:.300} was removed just now.")
        sha256 = self._digests.find(folder.path / name, status)
        if sha256 is None and (problem := self._unread.pop(folder.path / name, None)) is not None:
            raise RoundhouseError("source_not_found", f"{name!r:.300} cannot be read: {problem}.")
        if sha256 is None and folder.path / name not in self._hashing:
            self._hashing.add(folder.path / name)
            self._threads.submit(self._hash, folder, name)
        return SharedFile(path=name, size=status.st_size, mtime_ns=status.st_mtime_ns, sha256=sha256)

    def _hash(self, folder: ModelsFolder, name: str) -> None:
        def check_stop() -> None:
            if self._stopped.is_set():
                raise StoppedError

        try:
            with folder.open_file(name) as descriptor:
                before = os.fstat(descriptor)
                found = hash_file(descriptor, before.st_size, check_stop)
                after = os.fstat(descriptor)
            if (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns):
                self._digests.note(folder.path / name, after, found.sha256)
                self._unread.pop(folder.path / name, None)
            else:
                log.warning("%s changes while it is read for its hash", folder.path / name)
                self._unread[folder.path / name] = "it changes meanwhile"
        except StoppedError:
            pass
        except (OSError, RoundhouseError) as error:
            log.warning("the hash of %s is not known: %s", folder.path / name, error)
            self._unread[folder.path / name] = getattr(error, "strerror", None) or str(error)
        finally:
            self._hashing.discard(folder.path / name)

    def open_bytes(self, path: str, sha256: str, start: int, end: int) -> tuple[int, int]:
        """Return a descriptor of the file at a path below the models folders, or of what a download has of it, from
        which the bytes from `start` up to, without, `end` can be read; and the file's size, which ends them earlier.
        The caller closes it. A download gives no part that reaches beyond the file.

        Raises:
            RoundhouseError: `source_not_found`: no file with this hash is there, or not these bytes of it.
        """
        for folder in self._folders:
            with ExitStack() as stack, suppress(OSError, RoundhouseError):
                descriptor = stack.enter_context(folder.open_file(path))
                status = os.fstat(descriptor)
                if stat.S_ISREG(status.st_mode) and self._digests.find(folder.path / path, status) == sha256:
                    return os.dup(descriptor), status.st_size
        partial = self._find_partial(path, sha256, start, end)
        if partial is not None:
            with suppress(OSError):
                descriptor = os.open(partial, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                return descriptor, os.fstat(descriptor).st_size
        raise RoundhouseError("source_not_found", f"There is no {path!r:.300} with this content here (yet).")


def _list_names(folder: ModelsFolder, path: str) -> tuple[bool, list[str]]:
    """Return whether the model at a path is a folder, and the paths of its files below the models folder. Raises
    FileNotFoundError if nothing is there, and RoundhouseError."""
    if validate_file_path(path) is not None or path.partition("/")[0] == OWN_FOLDER:
        raise FileNotFoundError(path)
    target, is_link = folder.path, False
    for part in path.split("/"):
        target = target / part
        is_link = is_link or target.is_symlink()
    if is_link:
        raise _refuse_link(path)
    if not target.is_dir():
        target.stat()
        beside = sorted(each.name for each in target.parent.iterdir() if _belongs_to(each.name, target.name))
        parent = path.rpartition("/")[0]
        return False, [path, *(f"{parent}/{name}" if parent else name for name in beside)]
    names = []
    for current, folders, files in os.walk(target):
        below = Path(current).relative_to(folder.path).as_posix()
        for name in (*folders, *files):
            if Path(current, name).is_symlink():
                raise _refuse_link(f"{below}/{name}")
        names += [f"{below}/{name}" for name in files if validate_file_path(f"{below}/{name}") is None]
    return True, sorted(names)


def _belongs_to(name: str, main: str) -> bool:
    is_tokenizer = main.endswith(".onnx") and (name in _TOKENIZERS or name.endswith("-vocab.txt"))
    is_outside = name in {main + suffix for suffix in _OUTSIDE}
    return name != main and (is_outside or is_tokenizer or are_of_one_set(name, main))


def _refuse_link(path: str) -> RoundhouseError:
    return RoundhouseError(
        "source_not_found",
        f"{path!r:.300} is a symbolic link, and is not given to other hosts: put the file itself there.",
    )
