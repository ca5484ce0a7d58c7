"""Writes the controller's journal entries: rounds, edits of files, operators' statements, gateways' links."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from pydantic import JsonValue

from controller.config.debounce import DebouncedState
from controller.desired.config_diff import ModelEdit, diff_keys, diff_models, diff_tools
from controller.journal.entry import NewEntry
from controller.journal.event_log import EventLog
from controller.journal.round_events import Trouble, round_events, trouble_events
from controller.planning.draining import GatewayView
from controller.redaction.redactor import Redact
from controller.schema.admin import KeyChange, ToolChange
from controller.schema.declarations import DeclarationKind
from controller.schema.journal import EventKind
from controller.schema.override import is_whole_statement
from controller.schema.tools import REPLICA_PREFIX
from controller.status.reconcile_round import Round


class Recorder:
    """Makes journal entries of what the controller does and sees, and appends them to `journal`, stamped with the
    clock's time (Unix seconds). Never raises where the journal cannot be written. `redact(model, text)` masks the
    secrets of a model in a text."""

    def __init__(self, journal: EventLog, clock: Callable[[], float], redact: Redact) -> None:
        self._redact = redact
        self._journal = journal
        self._clock = clock
        self._trouble = Trouble()

    def record_start(self, version: str, instance: str) -> None:
        """Record that the controller started."""
        self._record_entry(
            NewEntry("controller", "controller", f"the controller of {instance} started (version {version})")
        )

    def record_end(self) -> None:
        """Record that the controller stopped in order; after a crash the entry is missing."""
        self._record_entry(NewEntry("controller", "controller", "the controller stopped"))

    def record_statement(self, message: str, actor: str, details: Mapping[str, JsonValue]) -> None:
        """Record an order about all models, for example to pause. `actor` is who gave it, `message` the entry's text.
        Secrets in `message` and `details` are not masked."""
        self._record_entry(NewEntry("statement", actor, message, details=details))

    def record_superseded(self, kind: DeclarationKind, name: str) -> None:
        """Record that a runtime declaration ended, because the files declare its name now."""
        subject = f"key {name}" if kind == "keys" else name
        message = f"the runtime declaration of {subject} has ended: the files declare it"
        model = name if kind == "models" else None
        self._record_entry(NewEntry("file", "files", message, model, {"kind": kind, "name": name}))

    def record_gateway(self, gateway_id: str, is_connected: bool) -> None:
        """Record that a gateway connected (True) or disconnected (False)."""
        word = "connected" if is_connected else "disconnected"
        self._record_entry(
            NewEntry("gateway", gateway_id, f"gateway {gateway_id} is {word}", details={"connected": is_connected})
        )

    def record_edits(
        self,
        before: DebouncedState | None,
        after: DebouncedState,
        ended_by_model: Mapping[str, Sequence[str]],
        actor: str,
    ) -> None:
        """Record one entry for each model, API key, tool and MCP server whose declaration was added, removed or changed
        between `before` and `after`, by `actor`: `files`, or whoever declared it at run time.

        `before` None (the controller's first reading) records nothing. `ended_by_model` maps a model to the fields of
        its runtime statement (an operator's load or unload) that the edit ended.
        """
        if before is None:
            return
        model_edits = diff_models(before.declared_models, after.declared_models)
        entries = [
            _edit_entry(each, ended_by_model.get(each.model, ()), actor)
            for each in model_edits
            # An edit of an MCP server is told with the tools.
            if each.model in ended_by_model or not each.model.startswith(REPLICA_PREFIX)
        ]
        entries += [_key_edit_entry(each, actor) for each in diff_keys(before.declared_keys, after.declared_keys)]
        entries += [_tool_edit_entry(each, actor) for each in diff_tools(before.tools, after.tools)]
        self._journal.record_entries(entries, self._clock())

    def record_round(self, before: Round | None, after: Round, gateways: Iterable[GatewayView]) -> None:
        """Record what changed between two complete rounds: states, actions, failures, overdue unloads, GPUs. `before`
        None means that `after` is the first; then no state counts as changed.

        `gateways` are the last reports of all gateways, which name the running requests that hold up an overdue unload.
        """
        leaving_requests: dict[str, dict[str, float]] = {}
        for view in gateways:
            for replica, requests in view.report.leaving.items():
                leaving_requests.setdefault(replica, {}).update(requests)
        self._journal.record_entries(round_events(before, after, leaving_requests, self._redact), self._clock())

    def record_trouble(self, trouble: Trouble) -> None:
        """Record what began, changed or ended of the controller's trouble since the previous call.

        Call it with the present trouble after every round; `Trouble()` means that there is none.
        """
        entries = trouble_events(self._trouble, trouble)
        self._trouble = trouble
        self._journal.record_entries(entries, self._clock())

    def _record_entry(self, entry: NewEntry) -> None:
        self._journal.record_entries([entry], self._clock())


def _edit_entry(edit: ModelEdit, ended_names: Sequence[str], actor: str) -> NewEntry:
    fields = ", ".join(change.field for change in edit.fields)
    words = {"added": "declared", "removed": "no longer declared", "edited": f"edited: {fields}"}[edit.change]
    is_entire = is_whole_statement(ended_names)
    details: dict[str, JsonValue] = {
        "change": edit.change,
        "fields": [change.model_dump(mode="json") for change in edit.fields],
        "ended_statement": is_entire,
        "ends": list(ended_names),
    }
    ended_words = "its runtime statement" if is_entire else f"{', '.join(ended_names)} of its load"
    suffix = f"; this ended {ended_words}" if ended_names else ""
    return NewEntry("file" if actor == "files" else "statement", actor, f"{words}{suffix}", edit.model, details)


def _key_edit_entry(edit: KeyChange, actor: str) -> NewEntry:
    words = {"added": "declared", "removed": "no longer declared", "edited": f"edited: {', '.join(edit.fields)}"}
    details = edit.model_dump(mode="json")
    kind: EventKind = "file" if actor == "files" else "statement"
    return NewEntry(kind, actor, f"the key {edit.key} is {words[edit.change]}", details=details)


def _tool_edit_entry(edit: ToolChange, actor: str) -> NewEntry:
    words = {"added": "declared", "removed": "no longer declared", "edited": f"edited: {', '.join(edit.fields)}"}
    subject = "tool" if edit.kind == "tool" else "MCP server"
    details = edit.model_dump(mode="json")
    return NewEntry("file", actor, f"the {subject} {edit.name} is {words[edit.change]}", details=details)
