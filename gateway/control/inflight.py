"""Counts of requests in flight, by replica and by model, the report of them to the controller, and when it is due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping

from contract.routing import GatewayReport, PrefillTokens
from gateway.routing.table import Routes

LEAVING_NAMED = 20
"""Maximum number of request ids per replica that a report names: those that have been in flight for longest."""


class InflightCounts:
    """This gateway's requests in flight, and what else its reports to the controller say of models and replicas.

    Attempts, and calls of MCP servers that the controller runs, count themselves in and out, and `ControllerLink` sends
    the reports. Methods that change what a report shows call `on_change`, except `forget_absent`, whose caller reports,
    and `record_answer`. Times are Unix time in seconds.

    Invariant: a request is counted under its replica from when the replica is chosen, always from the table in force,
    until the request's last byte. So a report made under table T counts every running request that was admitted under
    an older table, and no request is admitted under an older table afterwards.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        queued: Mapping[str, int],
        longest_wait_s: Callable[[str], float] = lambda _: 0.0,
        keys_used: dict[str, float] | None = None,
    ) -> None:
        """`clock`: Unix time in seconds. `queued`: admission's number of waiting requests by model. `longest_wait_s`:
        seconds that the oldest waiting request of a model has waited. `keys_used`: Unix time of the last use of each
        API key, written by the authenticator; `forget_absent` deletes from it. None: no key is used."""
        self._clock = clock
        self._longest_wait_s = longest_wait_s
        self._last_used: dict[str, float] = {}
        self._keys_used = {} if keys_used is None else keys_used
        self._demand: dict[str, float] = {}
        self._failed_at: dict[str, float] = {}
        self._requests: dict[tuple[str, str], tuple[int, float]] = {}
        """How many times a request is in flight at a replica, and Unix time of the first choice; by replica and request
        id, oldest first."""
        self._prefills: dict[str, tuple[str, int, int]] = {}
        """Model, and tokens of the prompt that are processed and that there are, of requests whose prompt is being read
        and whose clients asked to be told; by request id."""
        self.inflight: dict[str, int] = {}
        """Number of requests in flight by replica name; absent if none."""
        self.inflight_by_model: dict[str, int] = {}
        """Number of requests in flight by model name, without calls of MCP servers; absent if none."""
        self.queued = queued
        """Number of requests that wait for a slot or a load, by model name; absent if none."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after each change that a report shows. Set by `ControllerLink`; must not block."""
        self.on_demand: Callable[[], None] = lambda: None
        """Called also when a model that is not loaded is first requested: the controller should know at once."""

    def enter_replica(self, model: str | None, replica: str, request_id: str) -> None:
        """Start counting a request as in flight at `replica`, and note the use of `model`. `model` None: `replica` is
        an MCP server, which is no model, and one of its tools is called.

        Call `leave_replica` once for each call, with the same arguments. A request is in flight at one model's replica
        at a time, which is not checked; it may have several calls of tools in flight at one server.
        """
        now = self._clock()
        count, since = self._requests.get((replica, request_id), (0, now))
        self._requests[replica, request_id] = (count + 1, since)
        self.inflight[replica] = self.inflight.get(replica, 0) + 1
        if model is not None:
            self._last_used[model] = now
            self.inflight_by_model[model] = self.inflight_by_model.get(model, 0) + 1
        self.on_change()

    def leave_replica(self, model: str | None, replica: str, request_id: str) -> None:
        """Stop counting a request as in flight. Call once per `enter_replica`, after the request's last byte.

        Raises:
            KeyError: the request is not counted at this replica, or `model` is not that of `enter_replica`.
        """
        count, since = self._requests[replica, request_id]
        if count > 1:
            self._requests[replica, request_id] = (count - 1, since)
        else:
            del self._requests[replica, request_id]
        _decrement_count(self.inflight, replica)
        if model is not None:
            _decrement_count(self.inflight_by_model, model)
            self._last_used[model] = self._clock()
        self.on_change()

    def record_demand(self, model: str) -> None:
        """Note the time of a request for an `autoload` model that is not loaded, so that the controller loads the
        model. The first call for a model calls `on_demand`, too. The demand stays until `forget_absent` drops it."""
        is_new_demand = model not in self._demand
        self._demand[model] = self._clock()
        self.on_change()
        if is_new_demand:
            self.on_demand()

    def record_failure(self, replica: str) -> None:
        """Note that `replica` refused or broke a connection now, so that the next report asks the controller to
        probe it."""
        self._failed_at[replica] = self._clock()
        self.on_change()

    def record_answer(self, replica: str) -> None:
        """Forget the failures of `replica`, because it answered a request. Does nothing if there are none, and never
        calls `on_change`: the next report tells it."""
        if self._failed_at:
            self._failed_at.pop(replica, None)

    def forget_absent(self, routes: Routes) -> None:
        """Forget models, replicas and keys that left the table, and demand for models that are loaded or not
        `autoload`.

        Requests in flight still count.
        """
        loaded_models = {name for name, route in routes.models.items() if route.state == "loaded"}
        _drop_absent(self._failed_at, routes.replicas)
        _drop_absent(self._last_used, routes.models.keys())
        _drop_absent(self._keys_used, routes.keys.by_name)
        autoload_models = {name for name, route in routes.models.items() if route.autoload}
        _drop_absent(self._demand, autoload_models - loaded_models)

    def record_prefill(self, request_id: str, model: str, processed: int, total: int) -> None:
        """Note how many of the `total` tokens of a request's prompt its engine has processed, for the reports. Replaces
        what was noted of the request before; call `end_prefill` when the prompt is processed or the attempt ends."""
        self._prefills[request_id] = (model, processed, total)
        self.on_change()

    def end_prefill(self, request_id: str) -> None:
        """Forget what `record_prefill` noted of a request: its prompt is processed, or the attempt has ended. Does
        nothing if nothing is noted."""
        if self._prefills.pop(request_id, None) is not None:
            self.on_change()

    def make_report(self, gateway_id: str, routes: Routes | None) -> GatewayReport:
        """Return a report for the controller, and change nothing. Times in the report are Unix time in seconds.
        `routes`: the table in force; None: there is none yet.

        `ControllerLink` adds the fields `process`, `draining`, `addresses`, `ending`, `remotes` and `tool_calls`.
        """
        now = self._clock()
        return GatewayReport(
            gateway_id=gateway_id,
            stamp=routes.stamp if routes else None,
            inflight=dict(self.inflight),
            queued=dict(self.queued),
            waits_since={name: now - self._longest_wait_s(name) for name in self.queued},
            last_used=dict(self._last_used),
            keys_used=dict(self._keys_used),
            demand=dict(self._demand),
            leaving=self._leaving_requests(routes.replicas if routes else frozenset()),
            failed=dict(self._failed_at),
            prefill=self._sum_prefills(),
        )

    def _sum_prefills(self) -> dict[str, PrefillTokens]:
        sums: dict[str, PrefillTokens] = {}
        for model, processed, total in self._prefills.values():
            sums[model] = sums.get(model, PrefillTokens()).add_request(processed, total)
        return sums

    def _leaving_requests(self, routed_replicas: Collection[str]) -> dict[str, dict[str, float]]:
        leaving_requests: dict[str, dict[str, float]] = {
            name: {} for name in self.inflight if name not in routed_replicas
        }
        if leaving_requests:
            for (replica, request_id), (_, since) in self._requests.items():
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


COALESCE_S = 0.1
"""Seconds within which changes share a report."""
EVERY_S = 2.0
"""Maximum number of seconds between two reports."""


class ReportSchedule:
    """Decides when the gateway's next report to the controller is due: at once, soon, or every `EVERY_S` (2) seconds.

    At most one task may wait. Used in the event loop's thread only.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        """`now`: monotonic seconds."""
        self._now = now
        self._last_report_at = float("-inf")
        self._report_requested = asyncio.Event()
        self._urgent_requested = asyncio.Event()

    def request_report(self) -> None:
        """Request a report as soon as `COALESCE_S` (0.1 s) have passed since the last. Call when something in it
        changes. Returns at once; repeated calls before the report count as one."""
        self._report_requested.set()

    def request_report_now(self) -> None:
        """Request a report at once, and do not wait for it. Call when the controller waits for the report."""
        self._report_requested.set()
        self._urgent_requested.set()

    async def wait_until_due(self) -> None:
        """Wait until a report is due, at most about `EVERY_S` seconds after the last. The first is due at once.

        The caller must make and send the report then: it covers all requests so far, and none of them is repeated.
        """
        await _wait_for_event(self._report_requested, self._last_report_at + EVERY_S - self._now())
        await _wait_for_event(self._urgent_requested, self._last_report_at + COALESCE_S - self._now())
        self._last_report_at = self._now()
        self._report_requested.clear()
        self._urgent_requested.clear()


async def _wait_for_event(event: asyncio.Event, seconds: float) -> None:
    """Return once `event` is set or the time is up, whichever is first."""
    if event.is_set() or seconds <= 0:
        return
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
