"""The tools of the MCP server: what a client is told of each, the scope that opens it, its arguments and its answers.
Pure.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from contract.errors import RoundhouseError
from contract.journal import EventKind
from contract.keys import KeyScope

LONGEST_WAIT_S: Final = 60.0
"""Most seconds that a tool waits for a load or an unload."""
MOST_LOG_LINES: Final = 1000
MOST_EVENTS: Final = 200

_ModelName = Annotated[str, Field(min_length=1, max_length=400, description="Name or alias of the model.")]
_WaitSeconds = Annotated[
    float,
    Field(
        ge=0,
        le=LONGEST_WAIT_S,
        allow_inf_nan=False,
        description="Most seconds to wait until it is done. 0: answer as soon as it has begun. It goes on after that.",
    ),
]


class ToolArguments(BaseModel):
    """Base of all arguments: pydantic's ValidationError refuses unknown fields and wrong types."""

    model_config = ConfigDict(extra="forbid", strict=True)


class NoArguments(ToolArguments):
    """Arguments of a tool that takes none."""


class ModelArguments(ToolArguments):
    """Arguments of a tool about one model."""

    model: _ModelName


class LoadArguments(ModelArguments):
    """Arguments of `load_model`."""

    values: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="Fields of the model's backend for this load only, as `load_constraints` of `get_model` names "
        "them; left out: as declared.",
    )
    replicas: int | None = Field(None, ge=1, description="Number of replicas; null: as declared.")
    restart: bool = Field(
        default=False,
        description="true: take `values` also while the model is loaded or loading; its replicas are replaced one at "
        "a time, and running requests finish.",
    )
    wait_s: _WaitSeconds = 0.0


class UnloadArguments(ModelArguments):
    """Arguments of `unload_model`."""

    hold: bool = Field(
        default=True,
        description="Applies to `autoload` models. true: the model stays unloaded until the next load. false: the next "
        "request loads it again.",
    )
    wait_s: _WaitSeconds = 0.0


class EventArguments(ToolArguments):
    """Arguments of `list_events`."""

    model: str | None = Field(None, max_length=400, description="Only events of this model; null: all.")
    kinds: list[EventKind] | None = Field(
        None, description="Only events of these kinds; null: those that say who or what changed something."
    )
    limit: int = Field(50, ge=1, le=MOST_EVENTS, description="Most events.")
    before: int | None = Field(
        None, ge=0, le=2**53 - 1, description="Only events older than the one with this id; null: from the newest on."
    )


class LogArguments(ModelArguments):
    """Arguments of `get_logs`."""

    replica: str | None = Field(
        None, max_length=200, description="Only the log of this replica, as `get_model` names it; null: of all."
    )
    lines: int = Field(100, ge=1, le=MOST_LOG_LINES, description="Number of last lines of each replica.")


class PullArguments(ToolArguments):
    """Arguments of `pull_model`."""

    reference: str = Field(
        min_length=1,
        max_length=400,
        description="What to download, such as `ggml-org/gemma-3-4b-it-GGUF:Q4_K_M`.",
    )


class SearchArguments(ToolArguments):
    """Arguments of `search_documents`."""

    query: str = Field(min_length=1, max_length=32_768, description="What to look for, in words.")
    top_k: int = Field(5, ge=1, le=20, description="Most passages.")
    filter: dict[str, Any] | None = Field(
        None, description='Only documents whose metadata match, such as `{"lang": "en"}`; null: all documents.'
    )


Fields = dict[str, Any]

MOST_BYTES: Final = 32 * 1024
"""Largest answer of a tool in bytes of JSON: about 8,000 tokens, less than what clients cut an answer at."""
CUT: Final = "cut"
"""Field of an answer that did not fit: sentences that say what is missing."""
MOST_MESSAGE: Final = 4000
"""Characters of an error's message; the rest is left out, with `[...]`."""
_SENTENCE_BYTES: Final = 160
"""Room for one sentence."""


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """The answer of one call: JSON fields, the same as text, and whether the call failed (`is_error`)."""

    fields: Fields
    """The structured content."""
    text: str
    """The same for a client that reads text alone."""
    is_error: bool = False


def answer_fields(fields: Fields) -> ToolAnswer:
    """Return the answer of a call that succeeded. `fields`: values that JSON can hold. They are cleaned and cut to
    `MOST_BYTES` as by `clean_fields` and `fit_fields`; the text is the JSON of what is kept."""
    fitted = fit_fields(clean_fields(fields), MOST_BYTES)
    return ToolAnswer(fitted, json.dumps(fitted, ensure_ascii=False))


def answer_error(error: RoundhouseError, request_id: str) -> ToolAnswer:
    """Return the answer of a call that failed, with `is_error`: the error's envelope, and its code, message and next
    steps as text. A message of more than `MOST_MESSAGE` characters is cut."""
    body = clean_fields(error.build_envelope(request_id).model_dump()["error"])
    if len(body["message"]) > MOST_MESSAGE:
        body["message"] = f"{body['message'][:MOST_MESSAGE]} [...]"
    lines = [f"{body['code']}: {body['message']}", *(f"- {step}" for step in body["next_steps"])]
    return ToolAnswer({"error": body}, "\n".join(lines), is_error=True)


def clean_fields(fields: Fields) -> Fields:
    """Return a deep copy of the fields as JSON holds them (tuples become lists), with `?` for halves of surrogate
    pairs, which UTF-8 cannot encode. Raises TypeError for a value that JSON cannot hold."""
    cleaned: Fields = json.loads(json.dumps(fields, ensure_ascii=False).encode(errors="replace"))
    return cleaned


def fit_fields(fields: Fields, most_bytes: int) -> Fields:
    """Return a copy of the fields whose JSON, in UTF-8, has at most `most_bytes` bytes.

    Where they are larger, lists lose their last entries, texts their end, and other values are left out: the largest
    field first, each field once. The field `cut` then has a sentence for each; it alone is left where that does not
    suffice.
    """
    fitted, sentences = dict(fields), list[str]()
    while (excess := _size({**fitted, CUT: sentences} if sentences else fitted) - most_bytes) > 0:
        whole = [name for name in fitted if not any(each.startswith(f"`{name}`:") for each in sentences)]
        if not whole:
            return {CUT: ["`answer`: left out, because it did not fit."]}
        name = max(whole, key=lambda each: _size(fitted[each]))
        room = _size(fitted[name]) - excess - _SENTENCE_BYTES
        kept, sentence = _cut_value(fitted[name], room)
        sentences.append(f"`{name}`: {sentence}")
        if kept is None:
            del fitted[name]
        else:
            fitted[name] = kept
    return {**fitted, CUT: sentences} if sentences else fitted


def cut_log(log: bytes, left_out: int, most_bytes: int) -> str:
    """Return the end of a log as text, of at most about `most_bytes`, from the start of a line on.

    `left_out`: bytes before `log` that were left out already; above 0, the rest of a line at the beginning of `log` is
    dropped, too. If anything is left out, a first line, which comes on top of `most_bytes`, says how many bytes. What
    is no UTF-8 becomes replacement characters.
    """
    end = log[-most_bytes:]
    left_out += len(log) - len(end)
    if left_out and b"\n" in end[:-1]:
        start = end.index(b"\n") + 1
        left_out, end = left_out + start, end[start:]
    text = end.decode(errors="replace")
    if not left_out:
        return text
    return f"[{left_out} earlier bytes are left out: ask for fewer `lines`, or one `replica`]\n{text}"


def _cut_value(value: Any, room: int) -> tuple[Any, str]:
    if isinstance(value, list):
        size, count = 2, 0
        while count < len(value) and (size := size + _size(value[count]) + 2) <= room:
            count += 1
        return value[:count], f"{count} of {len(value)} entries, because not all fitted."
    if isinstance(value, str):
        kept = value
        while kept and (size := _size(kept)) > room:
            kept = kept[: max(0, len(kept) * max(0, room) // size - 1)]
        return kept, f"{len(kept)} of {len(value)} characters, because not all fitted."
    return None, f"left out, because it has {_size(value)} bytes."


def _size(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode())


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
        """Return the JSON Schema of the arguments, an object: without its own title and description and the titles of
        its properties; those nested deeper stay."""
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
        "Lists the models that this key may use, each with its state (unloaded, sleeping, loading, loaded, unloading, "
        "failed), the APIs that accept it, its context length and the progress of its load or download.",
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
