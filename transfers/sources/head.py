"""Source of the files that another host of the installation has in its models folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Final
from urllib.parse import quote

import httpx2
from pydantic import ValidationError

from common.network.address_rule import AllowedHosts
from common.network.transport import origin_of
from contract.downloads import SharedFile, SharedModel
from contract.errors import ErrorEnvelope, RoundhouseError
from contract.model_reference import HeadReference, validate_file_path
from transfers.network import FAILURES, NetworkOptions, RetryPolicy, SourceClient, describe_failure
from transfers.sources.base import AskAgainError, Resolution, SourceFile, check_status

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
