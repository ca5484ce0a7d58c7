"""All sources, by the kind of reference."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from contract.errors import RoundhouseError
from contract.model_reference import (
    HeadReference,
    HubReference,
    InvalidReferenceError,
    ModelReference,
    RegistryReference,
    UrlReference,
    parse_head_reference,
    parse_reference,
)
from transfers.network import NetworkOptions, SourceClient
from transfers.sources.base import Resolution
from transfers.sources.direct import HeadSource, LocalSource, UrlSource
from transfers.sources.hub import HubSource
from transfers.sources.registry import RegistrySource


@dataclass(frozen=True, slots=True)
class SourceSet:
    """The sources that this program knows: the hub, single addresses, local folders, registries and other hosts."""

    hub: HubSource
    url: UrlSource
    local: LocalSource
    registry: RegistrySource
    head: HeadSource | None = None
    """None: no host of an installation is asked."""

    def open_client(self, network: NetworkOptions, peers: Sequence[str]) -> SourceClient:
        """Return a client for the files of a download, to be closed: with `peers`, for what these hosts serve, else one
        for strangers."""
        return SourceClient(network) if self.head is None or not peers else self.head.open_client(peers)

    def resolve(
        self,
        reference: ModelReference,
        *,
        include_pickle: bool,
        peers: Sequence[str] = (),
        wait: Callable[[float], None] = time.sleep,
    ) -> Resolution:
        """Ask the source of the reference's kind what the reference is now. Blocks. `include_pickle`: whether weights
        in pickle files are taken, too. `peers`: see `CopyOrder.peers`. `wait` sleeps between two tries; what it
        raises is raised.

        Raises:
            RoundhouseError: `source_not_found`, `source_forbidden`, `source_address_refused`, `source_unavailable` or
                `source_mismatch`.
            InterruptedConnectionError: all connections of the program were ended.
        """
        if isinstance(reference, HubReference):
            return self.hub.resolve(reference, include_pickle=include_pickle, wait=wait)
        if isinstance(reference, UrlReference):
            return self.url.resolve(reference, wait=wait)
        if isinstance(reference, HeadReference):
            if self.head is None or not peers:
                raise RoundhouseError("source_not_found", f"{reference}: no host is named that has it.")
            return self.head.resolve(reference, peers, wait=wait)
        if isinstance(reference, RegistryReference):
            return self.registry.resolve(reference, include_pickle=include_pickle, wait=wait)
        return self.local.resolve(reference, include_pickle=include_pickle)


def read_reference(text: str) -> ModelReference:
    """Return the reference that a text names. Raises RoundhouseError `reference_invalid` if it is none."""
    try:
        return parse_head_reference(text) or parse_reference(text)
    except InvalidReferenceError as error:
        raise RoundhouseError("reference_invalid", str(error), param="reference") from None
