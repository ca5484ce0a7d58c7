"""All sources, by the kind of reference."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from common.model_reference import (
    HubReference,
    InvalidReferenceError,
    ModelReference,
    RegistryReference,
    UrlReference,
    parse_reference,
)
from controller.schema.errors import RoundhouseError
from transfers.sources.base import Resolution
from transfers.sources.hub import HubSource
from transfers.sources.local import LocalSource
from transfers.sources.registry import RegistrySource
from transfers.sources.url import UrlSource


@dataclass(frozen=True, slots=True)
class SourceSet:
    """The sources that this program knows."""

    hub: HubSource
    url: UrlSource
    local: LocalSource
    registry: RegistrySource

    def resolve(
        self, reference: ModelReference, *, include_pickle: bool, wait: Callable[[float], None] = time.sleep
    ) -> Resolution:
        """Ask the source what the reference is now. Blocks. `wait` sleeps between two tries; what it raises is raised.
        Raises RoundhouseError `source_…`."""
        if isinstance(reference, HubReference):
            return self.hub.resolve(reference, include_pickle=include_pickle, wait=wait)
        if isinstance(reference, UrlReference):
            return self.url.resolve(reference, wait=wait)
        if isinstance(reference, RegistryReference):
            return self.registry.resolve(reference, include_pickle=include_pickle, wait=wait)
        return self.local.resolve(reference, include_pickle=include_pickle)


def read_reference(text: str) -> ModelReference:
    """Parse a reference. Raises RoundhouseError `reference_invalid`."""
    try:
        return parse_reference(text)
    except InvalidReferenceError as error:
        raise RoundhouseError("reference_invalid", str(error), param="reference") from None
