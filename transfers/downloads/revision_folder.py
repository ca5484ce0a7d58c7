"""Which folder a revision of a model gets, beside another revision of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from controller.schema.downloads import PlacedFile
from transfers.sources.base import Resolution

SHOWN_DIGITS: Final = 12
"""Digits of the revision in the name of a folder."""


def choose_folder(resolution: Resolution, placed: Iterable[PlacedFile]) -> Resolution:
    """Return the resolution with the folder that its files go into. This is its own folder, or `FOLDER@REVISION` if
    downloads have put files of another revision into its own: engines may be reading those, so they are not
    overwritten. A resolution without a revision keeps its folder.

    `placed`: the files that all downloads have put into the models folder.
    """
    if resolution.revision is None:
        return resolution
    beside = f"{resolution.folder}@{resolution.revision.rpartition(':')[2][:SHOWN_DIGITS]}"
    known = {each.path: each for each in placed}
    if any(path.startswith(f"{beside}/") for path in known):
        return replace(resolution, folder=beside)
    for file in resolution.files:
        other = known.get(resolution.target_of(file))
        if other is not None and (other.size != file.size or file.sha256 not in (None, other.sha256)):
            return replace(resolution, folder=beside)
    return resolution
