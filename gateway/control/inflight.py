"""What is inside, by replica and by model, and what the controller is told of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from controller.schema.routing import GatewayReport
from gateway.routing.table import Routes

LEAVING_NAMED = 20
"""Requests that a report names of one replica: those that have been inside for longest."""


class InflightCounts:
    """Counts of this gateway's requests.

    Invariant: a request is counted under its replica from the moment the replica is chosen until its last byte is
    done, and it is chosen from the table in force. So a report made at any moment under table T holds every request
    that was admitted under an older table, and none is admitted under an older one afterwards.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        queued: Mapping[str, int],
        longest_wait_s: Callable[[str], float] = lambda _: 0.0,
    ) -> None:
        """`clock` gives Unix time in seconds; `queued` is admission's count, model to requests that wait, and
        `longest_wait_s` tells how long the first of a model's has waited."""
        self._clock = clock
        self._longest_wait_s = longest_wait_s
        self._last_used: dict[str, float] = {}
        self._demand: dict[str, float] = {}
        self._failed_at: dict[str, float] = {}
        self._requests: dict[str, tuple[str, float]] = {}
        """Id of each request inside to its replica, and since when."""
        self.inflight: dict[str, int] = {}
        """Replica name to requests inside; never holds a zero."""
        self.inflight_by_model: dict[str, int] = {}
        self.queued = queued
        """Model to requests that wait for a slot or a load; never holds a zero."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after each change that a report would show."""
        self.on_demand: Callable[[], None] = lambda: None
        """Called, besides, when a model that is not loaded is first asked for: the controller should know at once."""

    def enter_replica(self, model: str, replica: str, request_id: str) -> None:
        """One request is inside `replica` from here. It can be inside one at a time."""
        now = self._last_used[model] = self._clock()
        self._requests[request_id] = (replica, now)
        self.inflight[replica] = self.inflight.get(replica, 0) + 1
        self.inflight_by_model[model] = self.inflight_by_model.get(model, 0) + 1
        self.on_change()

    def leave_replica(self, model: str, replica: str, request_id: str) -> None:
        """It is no longer. Once for each `enter`."""
        del self._requests[request_id]
        _decrement_count(self.inflight, replica)
        _decrement_count(self.inflight_by_model, model)
        self._last_used[model] = self._clock()
        self.on_change()

    def record_demand(self, model: str) -> None:
        """A request came for an autoload model that is not loaded."""
        is_new_demand = model not in self._demand
        self._demand[model] = self._clock()
        self.on_change()
        if is_new_demand:
            self.on_demand()

    def record_failure(self, replica: str) -> None:
        """`replica` refused a connection, or broke one."""
        self._failed_at[replica] = self._clock()
        self.on_change()

    def record_answer(self, replica: str) -> None:
        """`replica` is well, whatever was seen of it before."""
        if self._failed_at:
            self._failed_at.pop(replica, None)

    def forget_absent(self, routes: Routes) -> None:
        """Drop what is remembered of models and replicas that the table no longer has; requests inside still count."""
        loaded_models = {name for name, route in routes.models.items() if route.state == "loaded"}
        _drop_absent(self._failed_at, routes.replicas)
        _drop_absent(self._last_used, routes.models.keys())
        autoload_models = {name for name, route in routes.models.items() if route.autoload}
        _drop_absent(self._demand, autoload_models - loaded_models)

    def make_report(self, gateway_id: str, routes: Routes | None) -> GatewayReport:
        """All of it as the controller is told; `routes` are those in force."""
        now = self._clock()
        return GatewayReport(
            gateway_id=gateway_id,
            stamp=routes.stamp if routes else None,
            inflight=dict(self.inflight),
            queued=dict(self.queued),
            waits_since={name: now - self._longest_wait_s(name) for name in self.queued},
            last_used=dict(self._last_used),
            demand=dict(self._demand),
            leaving=self._leaving_requests(routes.replicas if routes else frozenset()),
            failed=dict(self._failed_at),
        )

    def _leaving_requests(self, routed_replicas: Collection[str]) -> dict[str, dict[str, float]]:
        leaving_requests: dict[str, dict[str, float]] = {
            name: {} for name in self.inflight if name not in routed_replicas
        }
        if leaving_requests:
            for request_id, (replica, since) in self._requests.items():  # in the order in which they came
                requests = leaving_requests.get(replica)
                if requests is not None and len(requests) < LEAVING_NAMED:
                    requests[request_id] = since
        return leaving_requests


def _decrement_count(counts: dict[str, int], name: str) -> None:
    count = counts[name] - 1
    if count:
        counts[name] = count
    else:
        del counts[name]


def _drop_absent(entries: dict[str, int] | dict[str, float], names: Collection[str]) -> None:
    for name in [name for name in entries if name not in names]:
        del entries[name]
