"""From which hosts a host that lacks a model's files gets them. Pure."""

from __future__ import annotations

from typing import Final

from controller.hosts import Host
from controller.state import ObservedState

HEAD: Final = ""
"""The controller's own machine among the hosts to fetch from."""
MOST_SOURCES: Final = 16
"""Hosts that are asked for one model's files."""


def find_file_sources(model: str, host: Host, observed: ObservedState) -> tuple[str, ...]:
    """Return the names of the hosts from which `host` gets the files of a model that it lacks. The first has all of
    them, and says which: the head (`HEAD`), or where that has none of them another host. The others may have them, or
    a part while they fetch them, too. Empty: the host lacks nothing, as far as is known, or nobody has the files, or
    the host fetches none."""
    if model not in host.missing_models or host.files_url is None:
        return ()
    others = [each for each in observed.hosts if each.answers and each.files_url is not None and each.name != host.name]
    others.sort(key=lambda each: (model in each.missing_models, each.name))
    names = [each.name for each in others]
    if model in observed.head_models:
        return (HEAD, *names)[:MOST_SOURCES]
    return tuple(names[:MOST_SOURCES]) if others and model not in others[0].missing_models else ()
