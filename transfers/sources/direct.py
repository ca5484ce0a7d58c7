"""Sources of single things: a file by its address and hash, whose size the server is asked for, and what lies on this
machine.
"""

from __future__ import annotations

import re
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from contract.errors import RoundhouseError
from contract.model_reference import LocalReference, UrlReference, validate_file_path
from transfers.network import FAILURES, NetworkOptions, RetryPolicy, SourceClient, describe_failure
from transfers.sources.base import AskAgainError, Resolution, SourceFile, read_range
from transfers.sources.model_files import NoSuchFileError, choose_files

_FOLDER_CHARACTERS: Final = re.compile(r"[^A-Za-z0-9.-]", re.ASCII)


class UrlSource:
    """Resolves a reference to one file at an address: finds its size. The reference has its hash."""

    def __init__(self, options: NetworkOptions, policy: RetryPolicy) -> None:
        self._options = options
        self._policy = policy

    def resolve(self, reference: UrlReference, *, wait: Callable[[float], None] = time.sleep) -> Resolution:
        """Ask the server for the file's size. Blocks. `wait` sleeps between two tries; what it raises is raised.

        Raises:
            RoundhouseError: `source_not_found`, `source_forbidden`, `source_address_refused`, `source_unavailable` or
                `source_mismatch`.
            InterruptedConnectionError: all connections of the program were ended.
        """
        parts = urlsplit(reference.url)
        name, host = unquote(parts.path.rpartition("/")[2]), parts.hostname or ""
        size = self._ask_size(reference.url, host, wait)
        return Resolution(
            reference=str(reference),
            pinned=str(reference),
            revision=None,
            files=(SourceFile(path=name, size=size, sha256=reference.sha256, url=reference.url),),
            folder=f"url/{_FOLDER_CHARACTERS.sub('_', host)}",
        )

    def _ask_size(self, url: str, host: str, wait: Callable[[float], None]) -> int:
        failures = 0
        client = SourceClient(self._options)
        try:
            while True:
                try:
                    with read_range(client, url, 0, 1) as answer:
                        return answer.total
                except AskAgainError as error:
                    failures += 1
                    delay = self._policy.choose_delay(failures, error.asked_s) if error.is_answer else None
                    if delay is None:
                        raise RoundhouseError("source_unavailable", f"{host}: {error}.") from None
                    wait(delay)
        except FAILURES as error:
            raise describe_failure(error, host) from None
        finally:
            client.close()


class LocalSource:
    """Lists files below the named folders, and nothing else."""

    def __init__(self, roots: Sequence[Path]) -> None:
        """`roots`: folders from which files may be taken; empty: no file may. Symbolic links in them are resolved
        now."""
        self._roots = [root.resolve() for root in roots]

    def resolve(self, reference: LocalReference, *, include_pickle: bool) -> Resolution:
        """Return the file that the reference names, or the files of a model in the folder that it names; none is read.
        Blocks on the disk. `include_pickle`: whether weights in pickle files are taken from a folder, too.

        Raises:
            RoundhouseError: `source_forbidden`: the path is outside the named folders; `source_not_found`: it does not
                exist, cannot be read, or has no model.
        """
        try:
            path = Path(reference.path).resolve(strict=True)
            self._check_root(path)
            if path.is_file():
                files = [_describe_file(path, path.name)]
                return Resolution(str(reference), str(reference), None, tuple(files), "local")
            return self._list_folder(reference, path, include_pickle=include_pickle)
        except (OSError, RuntimeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "a loop of symbolic links"
            raise RoundhouseError("source_not_found", f"{reference.path}: {reason}.") from None

    def _check_root(self, path: Path) -> None:
        if not any(path.is_relative_to(root) for root in self._roots):
            roots = ", ".join(map(str, self._roots)) or "none is named"
            raise RoundhouseError(
                "source_forbidden",
                f"{path} is in no folder of ROUNDHOUSE_TRANSFERS_LOCAL_FOLDERS ({roots}).",
            )

    def _list_folder(self, reference: LocalReference, folder: Path, *, include_pickle: bool) -> Resolution:
        found = {
            each.relative_to(folder).as_posix(): each
            for each in sorted(folder.rglob("*"))
            if each.is_file() and not each.is_symlink()
        }
        usable = [path for path in found if validate_file_path(path) is None]
        try:
            chosen = choose_files(usable, quantisation=None, path=None, include_pickle=include_pickle)
        except NoSuchFileError as error:
            raise RoundhouseError("source_not_found", f"The folder {folder}: {error}.") from None
        files = tuple(_describe_file(found[path], path) for path in chosen.paths)
        return Resolution(
            reference=str(reference),
            pinned=str(reference),
            revision=None,
            files=files,
            folder=f"local/{folder.name}",
            is_folder=chosen.is_folder,
            projector=chosen.projector,
        )


def _describe_file(path: Path, name: str) -> SourceFile:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise RoundhouseError("source_not_found", f"{path} is no regular file.")
    return SourceFile(path=name, size=status.st_size, local_path=path)
