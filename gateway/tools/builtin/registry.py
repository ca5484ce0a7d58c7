"""The built-in tools that a routing table enables."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from controller.schema.tools import ToolRoute
from gateway.tools.builtin import folder_tools
from gateway.tools.builtin.calculate import Calculate
from gateway.tools.builtin.current_time import CurrentTime
from gateway.tools.builtin.fetch_url import FetchUrl, PageNetwork
from gateway.tools.builtin.search_documents import Search, SearchDocuments
from gateway.tools.files.job_runner import JobRunner
from gateway.tools.spec import Tool, ToolSpec

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ToolResources:
    """What built-in tools work with. One serves all of a gateway."""

    clock: Callable[[], float]
    """Unix time in seconds."""
    search: Search
    jobs: JobRunner = field(default_factory=JobRunner)
    network: PageNetwork = field(default_factory=PageNetwork)


def build_tool(route: ToolRoute, resources: ToolResources) -> Tool | None:
    """Return an enabled tool; None: this gateway does not know it, or its declaration lacks what it needs, or has what
    this gateway cannot read, of which the log tells."""
    build = _BUILDERS.get(route.name)
    try:
        return None if build is None else build(route, resources)
    except ValueError as error:  # of a controller of another version, which declares more than this gateway can read
        logger.warning("the tool %s cannot be offered: %s", route.name, error)
        return None


def _folder_tool(spec: ToolSpec) -> Callable[[ToolRoute, ToolResources], Tool | None]:
    def build(route: ToolRoute, resources: ToolResources) -> Tool | None:
        return None if route.folder is None else folder_tools.FolderTool(spec, route.folder, resources.jobs)

    return build


_BUILDERS: Final[Mapping[str, Callable[[ToolRoute, ToolResources], Tool | None]]] = {
    "current_time": lambda _, resources: CurrentTime(resources.clock),
    "calculate": lambda *_: Calculate(),
    "search_documents": lambda _, resources: SearchDocuments(resources.search),
    "fetch_url": lambda route, resources: FetchUrl(route.hosts, resources.network, resources.jobs),
    "read_file": _folder_tool(folder_tools.READ_FILE),
    "list_files": _folder_tool(folder_tools.LIST_FILES),
    "search_files": _folder_tool(folder_tools.SEARCH_FILES),
    "write_file": _folder_tool(folder_tools.WRITE_FILE),
}
