"""What a container's processes are, and the main memory that they hold, as blocking functions of a client."""

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
    """The host's numbers of a container's processes; empty when it does not run."""
    return [pid for pid, _ in _list_processes(client, container_id)]


def container_host_mib(client: docker.APIClient, container_id: str) -> int | None:
    """MiB that a container holds, mapped model files included, what the kernel merely keeps of files not; None: it does
    not run, or the daemon does not say.

    The control group knows what processes share, but counts a file to whoever read it first, perhaps somebody outside;
    so it is not less than the largest process holds (RSS).
    """
    largest_rss = max((rss for _, rss in _list_processes(client, container_id)), default=0)
    try:
        stats: Mapping[str, Any] = client.stats(container_id, stream=False, one_shot=True)
    except APIError as error:
        log.debug("no figures of %s: %s", container_id, error)
        stats = {}
    return -(-max(largest_rss, mapped_bytes((stats.get("memory_stats") or {}).get("stats") or {})) // _MIB) or None


def mapped_bytes(stats: Mapping[str, int]) -> int:
    """Bytes that processes have mapped, by a control group's figures (version 2's names, else version 1's)."""
    if "anon" in stats:
        return stats["anon"] + stats.get("file_mapped", 0)
    return stats.get("total_rss", 0) + stats.get("total_mapped_file", 0)


def _list_processes(client: docker.APIClient, container_id: str) -> list[tuple[int, int]]:
    """Number and bytes of RSS."""
    try:
        # The daemon runs the host's ps, and keeps of its lines those of the container.
        process_table: Mapping[str, Any] = client.top(container_id, "-eo pid,rss")
    except APIError as error:
        log.debug("the processes of %s are not known: %s", container_id, error)
        return []
    return [(int(row[0]), int(row[1]) * _KIB) for row in process_table.get("Processes") or ()]
