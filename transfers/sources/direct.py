"""Sources of single things: a file by its address and hash, whose size the server is asked for, what lies on this
machine, and what another host of the installation has.
"""

from __future__ import annotations

import re
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlsplit

import httpx2
from pydantic import ValidationError

from common.network.address_rule import AllowedHosts
from common.network.transport import origin_of
from contract.downloads import SharedFile, SharedModel
from contract.errors import ErrorEnvelope, RoundhouseError
from contract.model_reference import HeadReference, LocalReference, UrlReference, validate_file_path
from transfers.network import FAILURES, NetworkOptions, RetryPolicy, SourceClient, describe_failure
from transfers.sources.base import AskAgainError, Resolution, SourceFile, check_status, read_range
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


HASHING_S: Final = 0.5
"""Seconds between two looks at a host that has not read its files to the end."""


class HeadSource:
    """Asks the hosts that an order names for files below their models folders. They are connected to wherever they are,
    with the installation's token and certificates, and nobody else is."""

    def __init__(self, network: NetworkOptions, token: str, policy: RetryPolicy) -> None:
        """`network`: as for hosts. `token`: what they ask for."""
        self._network = network
        self._token = token
        self._policy = policy

    def open_client(self, peers: Sequence[str]) -> SourceClient:
        """Return a client that connects to these hosts alone; the caller closes it."""
        origins = [origin_of(httpx2.URL(each)) for each in peers]
        allowed = AllowedHosts(frozenset((each.host, each.port) for each in origins))
        tokens = dict.fromkeys(origins, lambda: self._token)
        return SourceClient(replace(self._network, allowed=allowed, tokens=tokens))

    def resolve(
        self, reference: HeadReference, peers: Sequence[str], *, wait: Callable[[float], None] = time.sleep
    ) -> Resolution:
        """Return the files of the model as the first of the hosts has them, with their hashes, for which it may have to
        read them. Only that one is asked: another may have a part of them. Blocks, perhaps for minutes. `wait` sleeps
        between two tries; what it raises is raised.

        Raises:
            RoundhouseError: `source_not_found`, `source_forbidden`, `source_unavailable` or `source_mismatch`.
            InterruptedConnectionError: all connections of the program were ended.
        """
        with closing(self.open_client(peers)) as client:
            model = self._ask_model(client, peers[0], reference, wait)
        return _describe_model(reference, model, peers[0], peers[1:])

    def _ask_model(
        self, client: SourceClient, peer: str, reference: HeadReference, wait: Callable[[float], None]
    ) -> SharedModel:
        failures = 0
        while True:
            try:
                with client.open(f"{peer}/models/{quote(reference.path)}", {}) as (response, hops):
                    body = client.read_body(response, self._network.longest_answer)
                    if response.status_code == 202:
                        failures = 0
                    elif response.status_code == 404:
                        raise RoundhouseError("source_not_found", f"{peer}: {_read_words(body)}")
                    else:
                        check_status(response, hops)
                        return SharedModel.model_validate_json(body)
                wait(HASHING_S)
            except (httpx2.HTTPError, AskAgainError) as error:
                failures += 1
                if (delay := self._policy.choose_delay(failures, None)) is None:
                    raise RoundhouseError("source_unavailable", f"No connection to {peer}: {error}.") from None
                wait(delay)
            except FAILURES as error:
                raise describe_failure(error, peer) from None


def _read_words(body: bytes) -> str:
    try:
        return ErrorEnvelope.model_validate_json(body).error.message
    except ValidationError:
        return "it has no such file."


def _describe_model(reference: HeadReference, model: SharedModel, peer: str, others: Sequence[str]) -> Resolution:
    folder = reference.path if model.is_folder else reference.path.rpartition("/")[0]
    files = []
    for each in model.files:
        name = each.path.removeprefix(f"{folder}/") if folder else each.path
        is_inside = not folder or each.path.startswith(f"{folder}/")
        if each.sha256 is None or not is_inside or validate_file_path(name) is not None:
            raise RoundhouseError("source_mismatch", f"The answer of {peer} cannot be read: {each.path!r:.100}.")
        urls = [_file_url(host, each) for host in (peer, *others)]
        files.append(
            SourceFile(name, each.size, each.sha256, url=urls[0], mirrors=tuple(urls[1:]), mtime_ns=each.mtime_ns)
        )
    if not files:
        raise RoundhouseError("source_not_found", f"{peer}: the folder {reference.path!r:.300} is empty.")
    text = str(reference)
    return Resolution(text, text, None, tuple(files), folder, is_folder=model.is_folder)


def _file_url(host: str, file: SharedFile) -> str:
    return f"{host}/files/{quote(file.path)}?sha256={file.sha256}"
