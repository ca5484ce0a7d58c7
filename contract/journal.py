"""The journal of the controller, as the admin API and the command line show it."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import BaseModel, Field, JsonValue

from contract.status import Wire

EventKind = Literal[
    "state",
    "action",
    "failure",
    "statement",
    "file",
    "problem",
    "overdue",
    "drift",
    "controller",
    "gateway",
    "host",
    "download",
    "tool",
]
HISTORY_KINDS: tuple[EventKind, ...] = (
    "failure",
    "statement",
    "file",
    "problem",
    "overdue",
    "drift",
    "controller",
    "host",
    "download",
    "tool",
)
"""Kinds of journal entries that say who or what changed something, or called a tool. The other kinds are more frequent,
and are kept for a shorter time."""
RETENTION_CLASSES: tuple[frozenset[EventKind], ...] = (
    frozenset({"tool"}),
    frozenset(HISTORY_KINDS) - {"tool"},
    frozenset(get_args(EventKind)) - frozenset(HISTORY_KINDS),
)
"""Kinds of journal entries by how long they are kept: entries of one class do not displace those of another."""


class JournalEntry(Wire):
    """One event of the journal."""

    id: int = Field(
        description="Number of the entry. It increases with every entry, also over restarts of the controller."
    )
    at: float = Field(description="Unix time in seconds.")
    kind: EventKind = Field(description="Kind of event.")
    model: str | None = Field(
        default=None, description="Public model name; null: the event does not concern one model."
    )
    actor: str = Field(
        description="Who or what caused the event: `files`, `controller`, `engine`, or a name of whoever made the "
        "request."
    )
    message: str = Field(description="What happened, in one sentence.")
    details: dict[str, JsonValue] = Field(
        default_factory=dict, description="Details for programs. The keys depend on `kind`."
    )


class History(BaseModel):
    """One page of the journal's entries, newest first."""

    entries: list[JournalEntry] = Field(description="The entries, newest first.")
    next_before: int | None = Field(
        description="Value of `before` that returns the next page; null: this is the last page."
    )
