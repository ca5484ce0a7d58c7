"""What changes from one routing table to the next, as events of llama-server's router. Pure.

llama-server's README (tools/server, "GET /models/sse") has the events and their fields.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from controller.schema.routing import ModelRoute
from controller.schema.status import ModelState

EventName = Literal["model_status", "model_remove", "models_reload"]
RouterState = Literal["unloaded", "loading", "loaded"]
ROUTER_STATES: Final[Mapping[ModelState, RouterState]] = {
    ModelState.UNLOADED: "unloaded",
    ModelState.LOADING: "loading",
    ModelState.LOADED: "loaded",
    # llama-server's router has no such states. A failed model is unloaded there, with `failed` set.
    ModelState.UNLOADING: "unloaded",
    ModelState.FAILED: "unloaded",
}
"""The state of a model as llama-server's router calls it."""
ALL_MODELS: Final = "*"
"""What stands for the model's name in `models_reload`."""
LOAD_STAGE: Final = "text_model"
"""The one stage of a load: engines report their progress as one figure."""
KEPT_EVENTS: Final = 1000
"""Events that a reader which comes back can still get."""


@dataclass(frozen=True, slots=True)
class ModelEvent:
    """One event. `id` counts from 1, without gaps; `data` None: the event has none. `route`: the model as it is since,
    or was before its removal; None: the event is about the list."""

    id: int
    event: EventName
    model: str
    data: Mapping[str, Any] | None = None
    route: ModelRoute | None = None

    def describe(self) -> dict[str, Any]:
        """Return the event's JSON object."""
        told: dict[str, Any] = {"model": self.model, "event": self.event}
        return told if self.data is None else {**told, "data": dict(self.data)}


def find_changes(
    before: Mapping[str, ModelRoute], after: Mapping[str, ModelRoute]
) -> list[tuple[EventName, str, Mapping[str, Any] | None]]:
    """Return the events of the change between two tables, models in name order: removed ones, then `models_reload` if
    names, aliases or backends differ, then what the state or the progress of each model is now, where it differs."""
    found: list[tuple[EventName, str, Mapping[str, Any] | None]] = [
        ("model_remove", name, None) for name in sorted(before.keys() - after.keys())
    ]
    if _identities(before) != _identities(after):
        found.append(("models_reload", ALL_MODELS, None))
    for name in sorted(after):
        status, earlier = describe_status(after[name]), before.get(name)
        if earlier is None or describe_status(earlier) != status:
            found.append(("model_status", name, status))
    return found


def _identities(models: Mapping[str, ModelRoute]) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {name: (route.backend, route.aliases) for name, route in models.items()}


def describe_status(route: ModelRoute) -> dict[str, Any]:
    """Return the `data` of a `model_status`: the state, with `failed` after a failed load, and while a load reports its
    progress, `progress`."""
    status: dict[str, Any] = {"status": ROUTER_STATES[route.state]}
    if route.state is ModelState.FAILED:
        status["failed"] = True
    if route.state is ModelState.LOADING and route.progress is not None:
        status["progress"] = {"stages": [LOAD_STAGE], "current": LOAD_STAGE, "value": route.progress}
    return status


class ModelEventLog:
    """The last `KEPT_EVENTS` events of one gateway, and who is to be told of new ones. Use it in one event loop."""

    def __init__(self) -> None:
        self._models: Mapping[str, ModelRoute] = {}
        self._events: deque[ModelEvent] = deque(maxlen=KEPT_EVENTS)
        self._listeners: set[Callable[[], None]] = set()
        self.last_id = 0
        """Id of the newest event; 0: there was none."""
        self.is_closed = False
        """Whether `close` was called."""

    def follow_table(self, models: Mapping[str, ModelRoute]) -> None:
        """Add the events of the change to these models, which are those of the routing table in force, and call the
        listeners if there are any."""
        before, self._models = self._models, models
        changes = find_changes(before, models)
        for event, model, data in changes:
            self.last_id += 1
            route = models.get(model) or before.get(model)
            self._events.append(ModelEvent(self.last_id, event, model, data, route))
        if changes:
            for listener in list(self._listeners):
                listener()

    def list_after(self, event_id: int) -> Sequence[ModelEvent] | None:
        """Return the events after the one with that id, oldest first. None: not all of them are kept any more, or the
        id is of another gateway process, because no event has it yet."""
        if event_id > self.last_id or (self._events and event_id < self._events[0].id - 1):
            return None
        return [each for each in self._events if each.id > event_id]

    def close(self) -> None:
        """End all readers: the gateway stops. Events are still kept."""
        self.is_closed = True
        for listener in list(self._listeners):
            listener()

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each change, until `remove_listener`."""
        self._listeners.add(listener)

    def remove_listener(self, listener: Callable[[], None]) -> None:
        """Call it no more. Does nothing for one that is not known."""
        self._listeners.discard(listener)
