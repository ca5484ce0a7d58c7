"""Registries that speak the distribution protocol of the Open Container Initiative: Ollama's, Docker Hub, and others.

Reading is small: a manifest by its tag or digest, and blobs by their SHA-256. It is written here, on the checked
client: `oras`, the library for it, makes connections of its own by `requests`, and fetches whole blobs.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import httpx2

from contract.errors import RoundhouseError
from contract.model_reference import RegistryReference
from transfers.network import FAILURES, NetworkOptions, RetryPolicy, SourceClient, describe_failure
from transfers.sources.base import AskAgainError, Resolution, SourceFile, check_status
from transfers.sources.model_files import (
    MANIFEST_TYPES,
    NoSuchFileError,
    RegistryFiles,
    UnusableManifestError,
    choose_layers,
    find_single_manifest,
    parse_manifest,
    read_layers,
)

LONGEST_MANIFEST: Final = 4 * 1024 * 1024
"""Bytes; registries take no longer ones."""
_DOCKER_HUB: Final = frozenset({"docker.io", "index.docker.io"})
_DOCKER_HUB_REGISTRY: Final = "registry-1.docker.io"
_FOLDER_CHARACTERS: Final = re.compile(r"[^A-Za-z0-9.-]", re.ASCII)
Wait = Callable[[float], None]


class RegistrySource:
    """Lists the files of models in registries."""

    def __init__(self, ollama: str, options: NetworkOptions, policy: RetryPolicy) -> None:
        """`ollama`: address of the registry that `ollama:` means. `policy`: for requests that a registry refuses for a
        time."""
        self._ollama = ollama.rstrip("/")
        self._options = options
        self._policy = policy

    def resolve(self, reference: RegistryReference, *, include_pickle: bool, wait: Wait = time.sleep) -> Resolution:
        """Ask the registry what the reference is now. Blocks. `include_pickle`: whether weights in pickle files are
        taken, too. `wait` sleeps between two tries; what it raises is raised.

        Raises:
            RoundhouseError: `source_not_found`, `source_forbidden`, `source_address_refused`, `source_unavailable`, or
                `source_mismatch` for a manifest that cannot be used.
            InterruptedConnectionError: all connections of the program were ended.
        """
        client = SourceClient(self._options)
        try:
            for base in self._find_bases(reference):
                request = _ManifestRequest(client, base, reference, self._policy, wait)
                try:
                    digest, files = request.read_files(include_pickle=include_pickle)
                except httpx2.ConnectError:
                    if base.startswith("https:") and self._has_plain(reference):
                        continue
                    raise
                return _describe(reference, request.repository, base, digest, files)
            raise AssertionError("the last address is not given up")
        except FAILURES as error:
            raise describe_failure(error, reference.host or "the registry") from None
        finally:
            client.close()

    def _find_bases(self, reference: RegistryReference) -> Iterator[str]:
        if reference.host is None:
            yield self._ollama
            return
        host = _DOCKER_HUB_REGISTRY if reference.host in _DOCKER_HUB else reference.host
        yield f"https://{host}"
        if self._has_plain(reference):
            yield f"http://{host}"

    def _has_plain(self, reference: RegistryReference) -> bool:
        """Whether the registry may be asked without encryption, where it answers none with."""
        if reference.host is None:
            return False
        url = httpx2.URL(f"http://{reference.host}")
        return self._options.allowed.has(url.host, url.port or 80)


class _ManifestRequest:
    def __init__(
        self, client: SourceClient, base: str, reference: RegistryReference, policy: RetryPolicy, wait: Wait
    ) -> None:
        self._client = client
        self._base = base
        self._reference = reference
        self._policy = policy
        self._wait = wait
        is_short = "/" not in reference.name and (reference.host is None or reference.host in _DOCKER_HUB)
        self.repository = f"library/{reference.name}" if is_short else reference.name

    def read_files(self, *, include_pickle: bool) -> tuple[str, RegistryFiles]:
        """Return the digest of what the reference names, and the files. Raises RoundhouseError, or one of
        `FAILURES`."""
        reference = self._reference
        try:
            digest, body = self._read(reference.digest or reference.tag)
            manifest = parse_manifest(body)
            single = find_single_manifest(manifest)
            if single is not None:
                manifest = parse_manifest(self._read(single)[1])
            stem = _FOLDER_CHARACTERS.sub("_", f"{reference.name.rpartition('/')[2]}-{reference.tag}")
            return digest, choose_layers(read_layers(manifest), stem, include_pickle=include_pickle)
        except UnusableManifestError as error:
            raise RoundhouseError("source_mismatch", f"The manifest of {reference}: {error}.") from None
        except NoSuchFileError as error:
            raise RoundhouseError("source_not_found", f"{reference}: {error}.") from None

    def _read(self, name: str) -> tuple[str, bytes]:
        """Return the digest and the bytes of a manifest, by its tag or digest."""
        expected = name if name.startswith("sha256:") else None
        try:
            body = self._ask(f"{self._base}/v2/{self.repository}/manifests/{name}")
        except RoundhouseError as error:
            if expected is None or error.entry.code != "source_not_found":
                raise
            # Ollama's registry knows manifests by their digest as blobs alone.
            body = self._ask(f"{self._base}/v2/{self.repository}/blobs/{name}")
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        if expected is not None and digest != expected:
            raise RoundhouseError("source_mismatch", f"The registry answers {digest} instead of {expected}.")
        return digest, body

    def _ask(self, url: str) -> bytes:
        failures = 0
        while True:
            try:
                return self._ask_once(url)
            except AskAgainError as error:
                failures += 1
                delay = self._policy.choose_delay(failures, error.asked_s)
                if delay is None:
                    raise RoundhouseError(
                        "source_unavailable", f"{self._reference}: {error}.", retry_after_s=error.asked_s
                    ) from None
                self._wait(delay)

    def _ask_once(self, url: str) -> bytes:
        with self._client.open(url, {"accept": ", ".join(MANIFEST_TYPES)}) as (response, hops):
            if response.status_code == 404:
                raise RoundhouseError("source_not_found", f"The registry has no {self._reference}.")
            check_status(response, hops)
            return self._client.read_body(response, LONGEST_MANIFEST)


def _describe(
    reference: RegistryReference, repository: str, base: str, digest: str, files: RegistryFiles
) -> Resolution:
    described = tuple(
        SourceFile(
            path=path,
            size=layer.size,
            sha256=layer.digest.removeprefix("sha256:"),
            url=f"{base}/v2/{repository}/blobs/{layer.digest}",
        )
        for path in files.chosen.paths
        for layer in (files.layers[path],)
    )
    return Resolution(
        reference=str(reference),
        pinned=str(replace(reference, digest=digest)),
        revision=digest,
        files=described,
        folder=_choose_folder(reference, repository),
        is_folder=files.chosen.is_folder,
        projector=files.chosen.projector,
    )


def _choose_folder(reference: RegistryReference, repository: str) -> str:
    """Tags of one name are models of their own: Ollama's files have the tag in their names, others a folder for it."""
    if reference.host is None:
        return f"ollama/{repository}"
    return f"oci/{_FOLDER_CHARACTERS.sub('_', reference.host)}/{repository}/{reference.tag}"
