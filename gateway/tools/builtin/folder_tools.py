"""`read_file`, `list_files`, `search_files` and `write_file`: the files of one declared folder."""

from __future__ import annotations

from typing import Any, Final

from gateway.protocols.common.conversation import Fields
from gateway.tools.files.confined_folder import LONGEST_PATH
from gateway.tools.files.job_runner import JobRunner
from gateway.tools.spec import ToolCall, ToolResult, ToolSpec

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
    """One of the four tools, on its folder. Each call has a process of its own."""

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
