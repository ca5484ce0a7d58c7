"""What changes from one routing table to the next, and in downloads, as events of llama-server's router. Pure.

llama-server's README (tools/server, "GET /models/sse") has the events and their fields.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from contract.downloads import FINAL_STATES, Download
from contract.routing import ModelRoute
from contract.status import ModelState
from gateway.protocols.common.hiding import hide_addresses, hide_paths

EventName = Literal[
    "model_status", "model_remove", "models_reload", "download_progress", "download_finished", "download_failed"
]
RouterState = Literal["downloading", "unloaded", "sleeping", "loading", "loaded"]
ROUTER_STATES: Final[Mapping[ModelState, RouterState]] = {
    ModelState.UNLOADED: "unloaded",
    ModelState.SLEEPING: "sleeping",
    ModelState.LOADING: "loading",
    ModelState.LOADED: "loaded",
    # llama-server's router has no such states. A model that is ending stays loaded there until its engine has ended:
    # `unloaded` says that it can be loaded and deleted. A failed model is unloaded there, with `failed` set.
    ModelState.UNLOADING: "loaded",
    ModelState.FAILED: "unloaded",
}
"""The state of a model as llama-server's router calls it, while its files are not being downloaded."""
NO_ENGINE: Final = 1
"""`exit_code` of a failed load where no engine ended, or its code is not known: clients tell a failure by it."""
ALL_MODELS: Final = "*"
"""What stands for the model's name in `models_reload`."""
LOAD_STAGE: Final = "text_model"
"""The one stage of a load: engines report their progress as one figure."""
KEPT_EVENTS: Final = 1000
"""Events that a reader which comes back can still get."""


class ModelView(NamedTuple):
    """A model, and the newest download of its files. `download` None: nothing is known of any."""

    route: ModelRoute
    download: Download | None = None

    @property
    def running_download(self) -> Download | None:
        """The download, while it is under way; None: none is."""
        return None if self.download is None or self.download.state in FINAL_STATES else self.download


class Change(NamedTuple):
    """One event that `find_changes` finds. `model`: the model's own name, or `*` (`ALL_MODELS`) for `models_reload`.
    `data` None: the event has none."""

    event: EventName
    model: str
    data: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ModelEvent:
    """One event of a `ModelEventLog`. `id` counts from 1 in each log, without gaps. `model`, `data`: as in `Change`.
    `names`: the model's own and its aliases after the change, or, if it was removed, before the change; empty: the
    event is about the whole list of models."""

    id: int
    event: EventName
    model: str
    data: Mapping[str, Any] | None = None
    names: tuple[str, ...] = ()

    def describe(self) -> dict[str, Any]:
        """Return the event as the JSON object that clients get: `model`, `event` and, unless it is None, `data`."""
        told: dict[str, Any] = {"model": self.model, "event": self.event}
        return told if self.data is None else {**told, "data": dict(self.data)}


def join_downloads(models: Mapping[str, ModelRoute], downloads: Iterable[Download]) -> dict[str, ModelView]:
    """Return the models by name, each with that download of its source which was ordered last.

    A download belongs to a source if it was ordered under that reference, or was pinned to it. The download of a model
    is None if it names no source, or nothing is known of a download of its source.
    """
    newest: dict[str | None, Download] = {}
    for download in sorted(downloads, key=lambda each: each.created_at):
        newest[download.reference] = download
        if download.pinned is not None:
            newest[download.pinned] = download
    return {
        name: ModelView(route, newest.get(route.source) if route.source is not None else None)
        for name, route in models.items()
    }


def describe_status(view: ModelView) -> dict[str, Any]:
    """Return the `data` of a `model_status` event: the model's state as `status`, in the words of llama-server's
    router.

    While the model's files are being downloaded, and the model is neither loaded nor unloading, `status` is
    `downloading`, and there is no other field. After a failed load, `failed` and `exit_code` (`NO_ENGINE` if it is not
    known) are added; during a load whose engine reports its progress, `progress`, whose `value` is from 0 to 1.
    """
    route = view.route
    if view.running_download is not None and route.state not in (ModelState.LOADED, ModelState.UNLOADING):
        return {"status": "downloading"}
    status: dict[str, Any] = {"status": ROUTER_STATES[route.state]}
    if route.state is ModelState.FAILED:
        status["failed"] = True
        status["exit_code"] = NO_ENGINE if route.exit_code is None else route.exit_code
    if route.state is ModelState.LOADING and route.progress is not None:
        status["progress"] = {"stages": [LOAD_STAGE], "current": LOAD_STAGE, "value": route.progress}
    return status


def describe_progress(download: Download) -> dict[str, Any]:
    """Return how far each file of a download is: its path below the models folder, with `done` and `total`, in
    bytes."""
    return {file.path: {"done": file.done_bytes, "total": file.size} for file in download.files}


def find_changes(before: Mapping[str, ModelView], after: Mapping[str, ModelView]) -> list[Change]:
    """Return the events of the change from `before` to `after`, which are all models by name.

    First comes `model_remove` for each model that is gone, in the order of names, then one `models_reload` if names,
    aliases or backends differ. Then follow the models of `after`, in the order of names, each with the events of what
    differs: `download_finished` or `download_failed`, then `model_status` (state, or progress of a load), then
    `download_progress`. A new model has a `model_status` in any case.
    """
    found = [Change("model_remove", name) for name in sorted(before.keys() - after.keys())]
    if _identities(before) != _identities(after):
        found.append(Change("models_reload", ALL_MODELS))
    for name in sorted(after):
        view, earlier = after[name], before.get(name)
        if view is earlier or view == earlier:
            continue
        known = None if earlier is None else earlier.download
        found += _find_end(name, known, view.download)
        status = describe_status(view)
        if earlier is None or describe_status(earlier) != status:
            found.append(Change("model_status", name, status))
        found += _find_progress(name, known, view.running_download)
    return found


def _identities(models: Mapping[str, ModelView]) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {name: (view.route.backend, view.route.aliases) for name, view in models.items()}


def _find_end(name: str, before: Download | None, after: Download | None) -> Iterator[Change]:
    if after is None or after.state not in FINAL_STATES or after == before:
        return
    if after.state == "finished":
        yield Change("download_finished", name)
    else:
        # Whoever may list models follows these events.
        error = None if after.error is None else hide_addresses(hide_paths(after.error.message))
        yield Change("download_failed", name, None if error is None else {"error": error})


def _find_progress(name: str, before: Download | None, running: Download | None) -> Iterator[Change]:
    if running is not None and running.files:
        progress = describe_progress(running)
        if before is None or describe_progress(before) != progress:
            yield Change("download_progress", name, {"progress": progress})


class ModelEventLog:
    """The models of one gateway with their downloads, the last `KEPT_EVENTS` (1000) events, and who is to be told of
    new events. Use it in one event loop."""

    def __init__(self, name: str) -> None:
        """`name`: of this log, different in every gateway process, of letters, digits and `-`."""
        self._name = name
        self._models: Mapping[str, ModelRoute] | None = None
        self._downloads: Sequence[Download] | None = None
        self.views: Mapping[str, ModelView] = {}
        """The models as they are now, by name."""
        self._events: deque[ModelEvent] = deque(maxlen=KEPT_EVENTS)
        self._listeners: set[Callable[[], None]] = set()
        self.last_id = 0
        """Id of the newest event; 0: there was none."""
        self.is_closed = False
        """Whether `close` was called."""

    def follow_table(self, models: Mapping[str, ModelRoute]) -> None:
        """Add the events of the change from the previous routing table to a new one. The first table adds events for
        all models.

        Calls the listeners if there are any events. `models`: all models of the table in force, by name.
        """
        self._models = models
        self._update(is_told=True)

    def follow_downloads(self, downloads: Sequence[Download]) -> None:
        """Add the events of the change from the downloads of the previous call to these, and call the listeners if
        there are any events.

        `downloads`: all downloads that are known. The first call adds no events: its downloads are where the log
        begins.
        """
        is_told = self._downloads is not None
        self._downloads = downloads
        self._update(is_told=is_told)

    def _update(self, *, is_told: bool) -> None:
        before, self.views = self.views, join_downloads(self._models or {}, self._downloads or ())
        if not is_told:
            return
        changes = find_changes(before, self.views)
        for event, model, data in changes:
            self.last_id += 1
            view = self.views.get(model) or before.get(model)
            names = () if view is None else (view.route.name, *view.route.aliases)
            self._events.append(ModelEvent(self.last_id, event, model, data, names))
        if changes:
            for listener in list(self._listeners):
                listener()

    def list_after(self, event_id: int | None) -> Sequence[ModelEvent] | None:
        """Return the events after the one with the id `event_id` (0: all events), oldest first; empty if it is the
        newest.

        None: not all of them are kept any more, `event_id` is greater than the newest id, or `event_id` is None,
        because it is of another gateway process.
        """
        if event_id is None or event_id > self.last_id or (self._events and event_id < self._events[0].id - 1):
            return None
        return [each for each in self._events if each.id > event_id]

    def write_id(self, event: ModelEvent) -> str:
        """Return the event's id as readers get it, which no event of another gateway process has."""
        return f"{self._name}.{event.id}"

    def read_id(self, text: str) -> int | None:
        """Return the id in a text that `write_id` made. None: the text is of another log, or no such text; nothing is
        raised."""
        name, _, number = text.rpartition(".")
        is_own = name == self._name and number.isascii() and number.isdigit() and len(number) < 16
        return int(number) if is_own else None

    def close(self) -> None:
        """Set `is_closed`, and call the listeners, so that all readers end. Call when the gateway stops.

        Events are still added and kept afterwards.
        """
        self.is_closed = True
        for listener in list(self._listeners):
            listener()

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever events were added, and in `close`, until `remove_listener`. It must not block or
        raise: what it raises reaches the caller of that method, and later listeners are not called."""
        self._listeners.add(listener)

    def remove_listener(self, listener: Callable[[], None]) -> None:
        """Stop calling `listener`. Does nothing if it was not added."""
        self._listeners.discard(listener)
