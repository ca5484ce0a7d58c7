"""The tools of the MCP server: what a client is told of each, and the scope that opens it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from controller.schema.keys import KeyScope
from gateway.mcp_server.arguments import (
    EventArguments,
    LoadArguments,
    LogArguments,
    ModelArguments,
    NoArguments,
    PullArguments,
    SearchArguments,
    ToolArguments,
    UnloadArguments,
)


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool, as clients see it. The four flags are MCP's annotations `readOnlyHint`, `destructiveHint`,
    `idempotentHint` and `openWorldHint`."""

    name: str
    title: str
    description: str
    scope: KeyScope
    """A key that lacks this scope is neither shown the tool nor may call it."""
    arguments: type[ToolArguments]
    is_read_only: bool = True
    is_destructive: bool = False
    is_idempotent: bool = True
    """Whether the same call again changes nothing more."""
    is_open_world: bool = False
    """Whether the tool reaches beyond Roundhouse."""

    def build_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the arguments: an object without titles."""
        schema = self.arguments.model_json_schema()
        for field in ("title", "description"):
            schema.pop(field, None)
        for field_schema in schema.get("properties", {}).values():
            field_schema.pop("title", None)
        return {**schema, "type": "object", "properties": schema.get("properties", {})}


TOOLS: Final = (
    Tool(
        "list_models",
        "List models",
        "Lists the models that this key may use, each with its state (unloaded, loading, loaded, unloading, failed), "
        "the APIs that accept it, its context length and the progress of its load or download.",
        "inference",
        NoArguments,
    ),
    Tool(
        "search_documents",
        "Search documents",
        "Finds passages in the documents that the caller's tenant has stored, best first, each with its document, "
        "place and score.",
        "inference",
        SearchArguments,
    ),
    Tool(
        "get_model",
        "Get a model",
        "Everything about one model: state, replicas, requests inside, memory, last error, what a load may set, and "
        "its definition with secrets masked.",
        "admin",
        ModelArguments,
    ),
    Tool(
        "get_memory",
        "Get memory",
        "Memory in use of each GPU, by whom, and the estimated and measured memory of each model.",
        "admin",
        NoArguments,
    ),
    Tool(
        "load_model",
        "Load a model",
        "Begins to load a declared model and answers its state. A load takes seconds to minutes and goes on by itself: "
        "wait with `wait_s`, or ask `get_model` later. Models on demand that nobody uses may be unloaded to make room.",
        "admin",
        LoadArguments,
        is_read_only=False,
    ),
    Tool(
        "unload_model",
        "Unload a model",
        "Begins to unload a model and answers its state: new requests are refused, waiting ones are cancelled, running "
        "ones finish, then its engines end.",
        "admin",
        UnloadArguments,
        is_read_only=False,
        is_destructive=True,
    ),
    Tool(
        "get_plan",
        "Get the plan",
        "What the controller would do now, each step with its reason, and what is wanted and cannot be done.",
        "admin",
        NoArguments,
    ),
    Tool(
        "list_events",
        "List events",
        "Who or what changed what, and when: edits of files, loads and unloads, failures of engines. Newest first; "
        "`next_before` is the value of `before` for the next page.",
        "admin",
        EventArguments,
    ),
    Tool(
        "get_logs",
        "Get an engine's log",
        "The last log lines of a model's engines; where none runs, of the last one that ended. Secrets are masked.",
        "admin",
        LogArguments,
    ),
    Tool(
        "pull_model",
        "Download a model",
        "Begins to download a model's files into the models folder, and answers how far it is, the memory that the "
        "model will take and where it fits. The same reference again is the same download. Nothing is declared by it.",
        "admin",
        PullArguments,
        is_read_only=False,
        is_open_world=True,
    ),
)
"""All tools, those of the scope `inference` first."""
