"""A file at an address. Its size is asked of the server; its hash is in the reference."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Final
from urllib.parse import unquote, urlsplit

from common.model_reference import UrlReference
from controller.schema.errors import RoundhouseError
from transfers.network.client import NetworkOptions, SourceClient
from transfers.network.failures import FAILURES, describe_failure
from transfers.network.retry import RetryPolicy
from transfers.sources.base import Resolution, SourceFile
from transfers.sources.range_request import AskAgainError, read_range

_FOLDER_CHARACTERS: Final = re.compile(r"[^A-Za-z0-9.-]", re.ASCII)


class UrlSource:
    """Describes the one file at an address."""

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
