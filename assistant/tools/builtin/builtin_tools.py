"""The built-in tools, but for `fetch_url`, and which of them a routing table enables."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from assistant.tools.builtin.arithmetic import LONGEST_EXPRESSION, ArithmeticProblem, evaluate
from assistant.tools.builtin.fetch_url import FetchUrl, PageNetwork
from assistant.tools.files.file_jobs import LONGEST_PATH
from assistant.tools.files.job_runner import JobRunner
from assistant.tools.spec import Tool, ToolCall, ToolResult, ToolSpec
from contract.documents import SearchHit, SearchRequest, SearchResult
from contract.tools import ToolRoute
from gateway.protocols.common.conversation import Fields

logger = logging.getLogger(__name__)


CALCULATE: Final = ToolSpec(
    name="calculate",
    display_name="Calculate",
    description="Evaluates an arithmetic expression exactly. Operators: + - * / // % ** and parentheses. Constants: "
    "pi, e. Functions: abs, ceil, floor, round, min, max, sqrt, exp, ln, log (with a base), log10, sin, cos, tan, "
    "asin, acos, atan, in radians.",
    parameters={
        "type": "object",
        "properties": {
            "expression": {
                "type": "string",
                "minLength": 1,
                "maxLength": LONGEST_EXPRESSION,
                "description": "Such as (3 + 4) * 2 ** 10 / 7.",
            }
        },
        "required": ["expression"],
        "additionalProperties": False,
    },
    writes=False,
    server=None,
)


class Calculate:
    """The tool `calculate`. It evaluates within the event loop: an expression takes some milliseconds at most."""

    spec = CALCULATE

    async def run(self, call: ToolCall) -> ToolResult:
        """Return the value of the argument `expression`; a result with `is_error` says what is wrong with it."""
        try:
            return ToolResult(evaluate(call.arguments["expression"]))
        except ArithmeticProblem as problem:
            return ToolResult(str(problem), is_error=True)


CURRENT_TIME: Final = ToolSpec(
    name="current_time",
    display_name="Current time",
    description="Tells the current date, weekday and time in a time zone.",
    parameters={
        "type": "object",
        "properties": {
            "timezone": {
                "type": "string",
                "maxLength": 64,
                "description": "Name of the time zone in the IANA database, such as Europe/Berlin; default: UTC.",
            }
        },
        "additionalProperties": False,
    },
    writes=False,
    server=None,
)


class CurrentTime:
    """The tool `current_time`. It tells the time by the gateway's clock."""

    spec = CURRENT_TIME

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: Unix time in seconds."""
        self._clock = clock

    async def run(self, call: ToolCall) -> ToolResult:
        """Return the time in ISO 8601 with its offset, the weekday, and the zone, on one line: that of the argument
        `timezone`, by default UTC. A result with `is_error` names a zone that the gateway's machine does not know."""
        name = call.arguments.get("timezone") or "UTC"
        try:
            # Also where the machine has no database of time zones.
            zone = UTC if name == "UTC" else ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            return ToolResult(f"There is no time zone {name!r} in the IANA database.", is_error=True)
        now = datetime.fromtimestamp(self._clock(), UTC).astimezone(zone)
        return ToolResult(f"{now.isoformat(timespec='seconds')}, {now:%A}, {name} ({now.tzname()})")


MOST_HITS: Final = 20
USUAL_HITS: Final = 5
LONGEST_QUERY: Final = 4096

SEARCH_DOCUMENTS: Final = ToolSpec(
    name="search_documents",
    display_name="Search documents",
    description="Searches the user's documents, and returns the passages that fit best, each with its file and place.",
    parameters={
        "type": "object",
        "properties": {
            "query": {
                "type": "string",
                "minLength": 1,
                "maxLength": LONGEST_QUERY,
                "description": "What is looked for, in words or as a question.",
            },
            "top_k": {
                "type": "integer",
                "minimum": 1,
                "maximum": MOST_HITS,
                "description": f"Number of passages; default: {USUAL_HITS}.",
            },
        },
        "required": ["query"],
        "additionalProperties": False,
    },
    writes=False,
    server=None,
)

Search = Callable[[str, SearchRequest, str], Awaitable[SearchResult]]
"""Searches the documents of a tenant (first) for a request (its id last). May raise RoundhouseError."""


class SearchDocuments:
    """The tool `search_documents`. It asks the retrieval program for documents of the call's `document_tenant`."""

    spec = SEARCH_DOCUMENTS

    def __init__(self, search: Search) -> None:
        self._search = search

    async def run(self, call: ToolCall) -> ToolResult:
        """Return the passages, best first, numbered from 1, each with its file and place; a sentence where none fits.

        Raises:
            RoundhouseError: `retrieval_disabled`, `retrieval_unavailable`, or another error that retrieval answers.
        """
        request = SearchRequest.model_validate(
            {"query": call.arguments["query"], "top_k": int(call.arguments.get("top_k", USUAL_HITS))}
        )
        result = await self._search(call.document_tenant, request, call.request_id)
        if not result.data:
            return ToolResult(" ".join(filter(None, ("No passage fits.", result.notice))))
        return ToolResult("\n\n".join(_describe(number, hit) for number, hit in enumerate(result.data, start=1)))


def _describe(number: int, hit: SearchHit) -> str:
    page = "" if hit.page is None else f", page {hit.page}"
    return "\n".join((f"[{number}] {hit.filename or hit.document_id}{page}", *hit.headings, hit.text))


LARGEST_WRITE: Final = 1024 * 1024
"""Bytes of a file that is written."""
LONGEST_TEXT: Final = 1000
"""Characters of what is searched."""
_SEARCH_RESERVE_S: Final = 1.0
"""Seconds of a call's time that a search leaves for the start of its process and for its answer."""
_PATH: Final[Fields] = {"type": "string", "maxLength": LONGEST_PATH}


def _schema(properties: dict[str, Any], *required: str) -> Fields:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


READ_FILE: Final = ToolSpec(
    name="read_file",
    display_name="Read file",
    description="Reads a text file, or some of its lines.",
    parameters=_schema(
        {
            "path": {**_PATH, "description": "Path of the file within the folder, such as notes/today.md."},
            "first_line": {"type": "integer", "minimum": 1, "description": "First line that is read, from 1."},
            "last_line": {"type": "integer", "minimum": 1, "description": "Last line that is read; default: the last."},
        },
        "path",
    ),
    writes=False,
    server=None,
)
LIST_FILES: Final = ToolSpec(
    name="list_files",
    display_name="List files",
    description="Lists the files and folders in a folder, with the sizes of the files.",
    parameters=_schema({"path": {**_PATH, "description": "Path of a folder; default: the whole folder."}}),
    writes=False,
    server=None,
)
SEARCH_FILES: Final = ToolSpec(
    name="search_files",
    display_name="Search files",
    description="Finds the lines of text files that hold a text, in a folder and the folders in it.",
    parameters=_schema(
        {
            "text": {"type": "string", "minLength": 1, "maxLength": LONGEST_TEXT, "description": "What is searched."},
            "path": {**_PATH, "description": "Folder or file that is searched; default: the whole folder."},
            "files": {"type": "string", "maxLength": 100, "description": "Only files with such names, such as *.md."},
            "regex": {"type": "boolean", "description": "Whether `text` is a regular expression of Python's."},
            "ignore_case": {"type": "boolean", "description": "Whether upper and lower case are the same."},
        },
        "text",
    ),
    writes=False,
    server=None,
)
WRITE_FILE: Final = ToolSpec(
    name="write_file",
    display_name="Write file",
    description="Writes a text file; folders that are missing are made.",
    parameters=_schema(
        {
            "path": {**_PATH, "minLength": 1, "description": "Path of the file within the folder."},
            "content": {"type": "string", "maxLength": LARGEST_WRITE, "description": "The whole new content."},
            "replace": {"type": "boolean", "description": "Whether a file that exists is replaced; default: false."},
        },
        "path",
        "content",
    ),
    writes=True,
    server=None,
)


class FolderTool:
    """The tool `read_file`, `list_files`, `search_files` or `write_file`. Each call has a process of its own."""

    def __init__(self, spec: ToolSpec, folder: str, jobs: JobRunner) -> None:
        """`spec`: one of this module's. `folder`: as declared."""
        self.spec = spec
        self._folder = folder
        self._jobs = jobs

    async def run(self, call: ToolCall) -> ToolResult:
        """Return what the tool found or did; a result with `is_error` says why it did not.

        Cancelling has the process ended, and does not wait for its end: a file may have been written.

        Raises:
            RoundhouseError: `tool_failed`: the process ended at its limits, or does not start.
        """
        asked = call.arguments
        arguments: dict[str, Any] = {"root": self._folder, "path": asked.get("path", "")}
        largest_write = 0
        if self.spec is READ_FILE:
            last_line = None if "last_line" not in asked else int(asked["last_line"])
            arguments |= {"first_line": int(asked.get("first_line", 1)), "last_line": last_line}
            arguments |= {"most_bytes": call.max_output_bytes}
        elif self.spec is SEARCH_FILES:
            arguments |= {"text": asked["text"], "files": asked.get("files", "*")}
            arguments |= {"is_regex": asked.get("regex", False), "ignores_case": asked.get("ignore_case", False)}
            arguments |= {"within_s": max(0.5, call.timeout_s - _SEARCH_RESERVE_S)}
        elif self.spec is WRITE_FILE:
            largest_write = LARGEST_WRITE
            arguments |= {"content": asked["content"], "replace": asked.get("replace", False)}
            arguments |= {"most_bytes": LARGEST_WRITE}
        return await self._jobs.run_job(call, self.spec.name, arguments, largest_write=largest_write)


@dataclass(frozen=True, slots=True)
class ToolResources:
    """What built-in tools work with: clock, search, processes and network. One serves all of a gateway."""

    clock: Callable[[], float]
    """Unix time in seconds."""
    search: Search
    jobs: JobRunner = field(default_factory=JobRunner)
    network: PageNetwork = field(default_factory=PageNetwork)


def build_tool(route: ToolRoute, resources: ToolResources) -> Tool | None:
    """Return an enabled tool. None: this gateway does not know it, its declaration lacks the folder, or this gateway
    cannot read the declaration (logged)."""
    build = _BUILDERS.get(route.name)
    try:
        return None if build is None else build(route, resources)
    except ValueError as error:  # of a controller of another version, which declares more than this gateway can read
        logger.warning("the tool %s cannot be offered: %s", route.name, error)
        return None


def _folder_tool(spec: ToolSpec) -> Callable[[ToolRoute, ToolResources], Tool | None]:
    def build(route: ToolRoute, resources: ToolResources) -> Tool | None:
        return None if route.folder is None else FolderTool(spec, route.folder, resources.jobs)

    return build


_BUILDERS: Final[Mapping[str, Callable[[ToolRoute, ToolResources], Tool | None]]] = {
    "current_time": lambda _, resources: CurrentTime(resources.clock),
    "calculate": lambda *_: Calculate(),
    "search_documents": lambda _, resources: SearchDocuments(resources.search),
    "fetch_url": lambda route, resources: FetchUrl(route.hosts, resources.network, resources.jobs),
    "read_file": _folder_tool(READ_FILE),
    "list_files": _folder_tool(LIST_FILES),
    "search_files": _folder_tool(SEARCH_FILES),
    "write_file": _folder_tool(WRITE_FILE),
}
