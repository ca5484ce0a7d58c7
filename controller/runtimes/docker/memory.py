"""Lists a container's processes, and measures their main memory. Blocking."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import docker
from docker.errors import APIError

_KIB = 2**10
_MIB = 2**20

log = logging.getLogger(__name__)


def pids_of(client: docker.APIClient, container_id: str) -> list[int]:
    """Return the ids of a container's processes in the host's PID namespace. Empty if the container does not run, or if
    the daemon refuses for another reason. Blocks. Raises the errors of requests if the daemon does not answer."""
    return [pid for pid, _ in _list_processes(client, container_id)]


def container_host_mib(client: docker.APIClient, container_id: str) -> int | None:
    """Return the MiB of main memory that a container holds, with mapped model files but without other file cache.
    Blocks.

    None if the container does not run, or if the daemon does not report it; never 0. The value is that of the control
    group, which counts memory shared by its processes once. But it counts a file for whoever read it first, which may
    be a process outside, so the result is at least the memory (RSS) of the largest process. Raises the errors of
    requests if the daemon does not answer.
    """
    largest_rss = max((rss for _, rss in _list_processes(client, container_id)), default=0)
    try:
        stats: Mapping[str, Any] = client.stats(container_id, stream=False, one_shot=True)
    except APIError as error:
        log.debug("no figures of %s: %s", container_id, error)
        stats = {}
    return -(-max(largest_rss, mapped_bytes((stats.get("memory_stats") or {}).get("stats") or {})) // _MIB) or None


def mapped_bytes(stats: Mapping[str, int]) -> int:
    """Return the bytes that processes have mapped, by the `memory_stats.stats` of a control group (version 2 or 1); 0
    if they do not say."""
    if "anon" in stats:
        return stats["anon"] + stats.get("file_mapped", 0)
    return stats.get("total_rss", 0) + stats.get("total_mapped_file", 0)


def _list_processes(client: docker.APIClient, container_id: str) -> list[tuple[int, int]]:
    """Return the host's pid and the RSS in bytes of each process; empty if the container does not run."""
    try:
        # The daemon runs the host's ps, and returns the lines of the container's processes.
        process_table: Mapping[str, Any] = client.top(container_id, "-eo pid,rss")
    except APIError as error:
        log.debug("the processes of %s are not known: %s", container_id, error)
        return []
    return [(int(row[0]), int(row[1]) * _KIB) for row in process_table.get("Processes") or ()]
