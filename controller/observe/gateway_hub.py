"""The gateways that are or were connected, which are sent routing tables, and what they report of remote models,
which somebody else's server serves.

The controller has no network access beyond its host, so it probes no remote itself. The routing table tells gateways
what to probe, and their reports bring the results.

The end of a remote's drain stops nothing, so it cannot cut off a request. The drain waits for the reports of
connected gateways, and for a lost gateway only as long as a gateway that merely lost its link takes to come back
(`ARRIVAL_S`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from pydantic import SecretStr

from common.processes import read_host
from contract.keys import Key
from contract.routing import GatewayProcess, GatewayReport, ModelRoute, RemoteProbe, RemoteResult, RoutingTable, Stamp
from contract.tools import McpServerRoute, ToolRoute
from controller.engines import REPLICA_ENGINES
from controller.engines.base import Remote
from controller.planning.draining import ARRIVAL_S, FORGET_S, DrainState, GatewayView, is_drained, present_gateways
from controller.planning.gateway_place import PlaceHolder, describe_refusal, find_rival, process_of
from controller.redaction import mask_text, replace_secrets
from controller.runtimes.process.groups import Process, is_alive, read_stat
from controller.state import DesiredModel, DesiredState

log = logging.getLogger(__name__)


REFUSAL_SHOWN_S: Final = 15.0
"""Seconds for which a refused gateway is named after it last asked. It asks every 3 s."""


def see_process(process: GatewayProcess) -> bool | None:
    """Return whether a gateway's process runs; None: it cannot be seen from here, because it runs on another machine or
    in another container, or does not say where."""
    if process.pid is None or process.start_ticks is None or process.host is None or process.host != read_host():
        return None
    try:
        # Where others' processes are hidden (hidepid), the first one is, too.
        return is_alive(Process(process.pid, process.start_ticks)) or (None if read_stat(1) is None else False)
    except PermissionError:
        return None


@dataclass(frozen=True, slots=True)
class GatewayPlace:
    """How a hub remembers, over restarts of the controller, which gateway it has accepted. `last`: the process that the
    controller before had accepted; None: none, or it has said goodbye. `remember` stores the accepted process for the
    next controller, and returns whether that is done; with each report it is tried again. `see`: see `see_process`."""

    last: GatewayProcess | None = None
    remember: Callable[[GatewayProcess | None], bool] = lambda _: True
    see: Callable[[GatewayProcess], bool | None] = see_process


class GatewayHub:
    """Holds the current routing table, the last report of the gateway that has the place, that is, works with the
    controller, and those of former ones that may still hold requests. The reconciler publishes tables; each gateway's
    link asks for the place (`admit_gateway`), waits for tables and brings reports. Belongs to one event loop."""

    def __init__(
        self,
        instance: str,
        epoch: int,
        *,
        wake: Callable[[], None],
        clock: Callable[[], float],
        on_link: Callable[[str, bool], None] = lambda *_: None,
        place: GatewayPlace | None = None,
        keys_used: Mapping[str, float] | None = None,
    ) -> None:
        """Start without a table and without gateways. `instance` and `epoch` go into every table; the epoch must be
        greater than that of any earlier controller. `wake` wakes the reconciler. `clock` returns Unix time in seconds.
        `on_link(gateway_id, connected)` is called when a gateway's first link opens (True) and when its last one has
        ended (False). `place` None: nobody had the place before, and nobody is told who has it. `keys_used`: what
        `keys_used` of the controller before was; None: not known."""
        self._on_link = on_link
        self._place = place or GatewayPlace()
        self._former = None if self._place.last is None else PlaceHolder(self._place.last, clock(), None)
        """Who had the place under the controller before, until the place is given again."""
        self._remembered = self._place.last
        self._refusals: dict[str, tuple[str, float]] = {}
        """Refused gateway to the sentence that says why, and the Unix time of its last question."""
        self._instance = instance
        self._epoch = epoch
        self._wake = wake
        self._clock = clock
        self._links: dict[str, int] = {}
        self._views: dict[str, GatewayView] = {}
        self._last_used: dict[str, float] = {}
        self.keys_used: Mapping[str, float] | None = keys_used
        """Unix time, cut to the minute, of the last use of each API key of the table, over the reports of all gateways
        and over restarts. Keys that were never seen are absent. None: not known, since no gateway has reported it."""
        self._table_changed = asyncio.Event()
        self._applied_changed = asyncio.Event()
        """Set, and replaced, where `_is_applied` may have changed."""
        self.table: RoutingTable | None = None

    @property
    def views(self) -> tuple[GatewayView, ...]:
        """The last report of every gateway that may still hold requests: connected ones, and lost ones that are not
        forgotten yet."""
        return tuple(self._views.values())

    @property
    def last_used(self) -> Mapping[str, float]:
        """Unix time of the last use of each model, over the reports of all gateways, including lost ones; never in the
        future. Models that nobody has used, or that are no longer in the table, are absent."""
        return self._last_used

    @property
    def connected_ids(self) -> list[str]:
        """Ids of the gateways whose link is up, sorted."""
        return sorted(self._links)

    @property
    def addresses(self) -> list[str]:
        """URLs on which the connected gateways listen, as they report them, without duplicates."""
        reports = [self._views[gateway].report for gateway in self.connected_ids if gateway in self._views]
        return list(dict.fromkeys(address for report in reports for address in report.addresses))

    def publish_table(
        self,
        models: tuple[ModelRoute, ...],
        keys: tuple[Key, ...] = (),
        tools: tuple[ToolRoute, ...] = (),
        mcp_servers: tuple[McpServerRoute, ...] = (),
    ) -> Stamp:
        """Make these routes, keys, tools and servers the current table, wake every waiting call of `wait_for_table`,
        and return the current table's stamp. Does not wait for gateways; see `wait_until_applied`. The table also names
        the gateways that are refused now. If they equal the current table, it stays in force with its stamp, and
        nothing is sent to gateways. The last use of models and keys that are not among these is forgotten."""
        names, key_names = {route.name for route in models}, {key.name for key in keys}
        self._last_used = {name: at for name, at in self._last_used.items() if name in names}
        if self.keys_used is not None:
            self.keys_used = {name: at for name, at in self.keys_used.items() if name in key_names}
        content: dict[str, object] = {"models": models, "keys": keys, "tools": tools, "mcp_servers": mcp_servers}
        content["refused_gateways"] = refused_gateways = self.refusals
        if self.table is not None and all(getattr(self.table, name) == each for name, each in content.items()):
            return self.table.stamp
        seq = 1 if self.table is None else self.table.stamp.seq + 1
        stamp = Stamp(epoch=self._epoch, seq=seq)
        self.table = RoutingTable(
            instance=self._instance,
            stamp=stamp,
            models=models,
            keys=keys,
            tools=tools,
            mcp_servers=mcp_servers,
            refused_gateways=refused_gateways,
        )
        self._table_changed.set()
        self._table_changed = asyncio.Event()
        self._tell_applied_change()
        return self.table.stamp

    def replace_permissions(
        self, keys: tuple[Key, ...], tools: tuple[ToolRoute, ...], mcp_servers: tuple[McpServerRoute, ...]
    ) -> None:
        """Publish the current routes with these keys, tools and servers in place of the current ones. Does nothing
        before the first table."""
        if self.table is not None:
            self.publish_table(self.table.models, keys, tools, mcp_servers)

    async def wait_for_table(self, after: Stamp | None) -> RoutingTable:
        """Return the current table if its stamp is newer than `after`; else wait, without limit, until a newer table is
        published, and return that. Tables that were replaced meanwhile are skipped. `after` None: return the current
        table, and wait only if this controller has published none yet."""
        while self.table is None or (after is not None and self.table.stamp <= after):
            await self._table_changed.wait()
        return self.table

    async def wait_until_applied(self) -> None:
        """Wait, without limit, until every connected gateway reports that it routes by the current table or a newer
        one. A gateway that has sent no report yet, or whose last link has ended, is not waited for. Returns at once if
        no gateway is connected; but before the first table is published, it does not return."""
        while not self._is_applied():
            await self._applied_changed.wait()

    def _is_applied(self) -> bool:
        if self.table is None:
            return False
        reports = [self._views[gateway].report for gateway in self._links if gateway in self._views]
        return all(report.stamp is not None and self.table.stamp <= report.stamp for report in reports)

    def take_report(self, report: GatewayReport) -> None:
        """Store a gateway's report, which replaces its previous one, and note when its models and keys were last used.
        Wakes the reconciler if the gateway is new or was lost, or if the report changes what is decided. Blocks for a
        write to the state folder if an earlier write of the accepted process failed."""
        previous_view = self._views.get(report.gateway_id)
        self._views[report.gateway_id] = GatewayView(report)
        if previous_view is None:
            self.forget_lost()  # its former selves
        if report.gateway_id in self._links and not (report.draining or report.ending):
            self._remember(process_of(report))  # nothing to do, but where the disk was full
        now = self._clock()
        for name, at in report.last_used.items():
            # Never in the future: a clock may have been set back.
            self._last_used[name] = min(now, max(at, self._last_used.get(name, at)))
        if report.keys_used is not None:
            known = dict(self.keys_used or {})
            used = {name: _cut_to_minute(min(now, at)) for name, at in report.keys_used.items()}
            self.keys_used = known | {name: max(at, known.get(name, at)) for name, at in used.items()}
        self._tell_applied_change()
        if (
            previous_view is None
            or previous_view.lost_at is not None
            or _changes_decision(previous_view.report, report)
        ):
            self._wake()

    def _tell_applied_change(self) -> None:
        changed, self._applied_changed = self._applied_changed, asyncio.Event()
        changed.set()

    @property
    def refusals(self) -> tuple[str, ...]:
        """A sentence for each refused gateway, in the order of their first requests. It is dropped by the first
        `forget_lost` that comes 15 s (`REFUSAL_SHOWN_S`) after the gateway's last request."""
        return tuple(words for words, _ in self._refusals.values())

    def admit_gateway(self, report: GatewayReport) -> str | None:
        """Decide whether the gateway whose link begins with this report gets the place: the right, of one gateway at a
        time, to work with this controller. None: yes; then call `open_link` and `take_report`. Else the result says why
        not, in one sentence, as does the table. Blocks for a write to the state folder if it is another process than
        before."""
        now = self._clock()
        self.forget_lost()
        rival = find_rival(report, self._list_holders(), now)
        words: str | None
        if rival is not None:
            words = describe_refusal(report, rival)
            if self._refusals.get(report.gateway_id, ("",))[0] != words:
                log.warning("%s", words)
            self._refusals[report.gateway_id] = (words, now)
        else:
            words = None
            self._refusals.pop(report.gateway_id, None)
            self._give_place(report)
        if self.table is not None:  # which names those that are refused
            self.replace_permissions(self.table.keys, self.table.tools, self.table.mcp_servers)
        return words

    def _list_holders(self) -> list[PlaceHolder]:
        holders = [
            PlaceHolder(
                process := process_of(view.report),
                view.lost_at,
                self._place.see(process),
                view.report.draining,
                view.report.addresses,
            )
            for view in self._views.values()
        ]
        if self._former is not None:
            holders.append(replace(self._former, is_alive=self._place.see(self._former.process)))
        return holders

    def _give_place(self, report: GatewayReport) -> None:
        self._former = None
        if not report.draining:
            self._remember(process_of(report))

    def _remember(self, process: GatewayProcess | None) -> None:
        if process != self._remembered and self._place.remember(process):
            self._remembered = process

    def open_link(self, gateway_id: str) -> None:
        """Count a link that a gateway opened; it may have several. The first one calls `on_link`. Call `close_link`
        once for each, when it ended."""
        self._links[gateway_id] = self._links.get(gateway_id, 0) + 1
        log.info("gateway %s is connected", gateway_id)
        if self._links[gateway_id] == 1:
            self._on_link(gateway_id, True)

    def close_link(self, gateway_id: str) -> None:
        """Note that a link of a gateway ended. After the last one, `on_link` is called and the reconciler is woken; a
        gateway that reported that it ends is forgotten, and any other one counts as lost from now on, with unknown
        request counts. Raises KeyError if no link of the gateway is open."""
        self._links[gateway_id] -= 1
        if self._links[gateway_id]:
            return
        del self._links[gateway_id]
        view = self._views.get(gateway_id)
        if view is not None and view.report.ending:
            del self._views[gateway_id]
            if not self._links:
                self._remember(None)
        elif view is not None:
            self._views[gateway_id] = replace(view, lost_at=self._clock())
            self.forget_lost()
        self._tell_applied_change()
        log.warning("gateway %s is disconnected", gateway_id)
        self._on_link(gateway_id, False)
        self._wake()

    def forget_lost(self) -> None:
        """Forget gateways that no longer hold requests: those that were lost 10 min (`FORGET_S`) ago or earlier, and
        lost ones whose process is seen gone, or cannot be seen while a later start of the same gateway is connected.
        Forget refusals whose gateways no longer ask."""
        now = self._clock()
        for gateway_id, view in list(self._views.items()):
            if view.lost_at is None:
                continue
            is_alive = self._place.see(process := process_of(view.report))
            is_gone = self._is_succeeded(process) if is_alive is None else not is_alive
            if is_gone or now - view.lost_at >= FORGET_S:
                del self._views[gateway_id]
        for gateway_id, (_, asked_at) in list(self._refusals.items()):
            if not 0 <= now - asked_at < REFUSAL_SHOWN_S:
                del self._refusals[gateway_id]

    def _is_succeeded(self, process: GatewayProcess) -> bool:
        connected = (process_of(view.report) for view in self._views.values() if view.lost_at is None)
        return any(each.id == process.id and each.epoch > process.epoch for each in connected)


def _cut_to_minute(at: float) -> float:
    return at // 60 * 60


def _changes_decision(previous: GatewayReport, report: GatewayReport) -> bool:
    """Return whether the next plan may depend on the difference between two reports of one gateway: it applied another
    table, saw demand or a failed connection, or a replica there became empty."""
    return (previous.stamp, previous.demand, previous.failed) != (report.stamp, report.demand, report.failed) or any(
        name not in report.inflight for name in previous.inflight
    )


class RemoteDraining:
    """The drains of remote models that are under way. Each round of the reconciler calls `forget_empty`, then
    `follow_desired` and, once its table is published, `note_published`. The drains are not stored: a restart of the
    controller forgets them, which is harmless because nothing is stopped at their end."""

    def __init__(self) -> None:
        self._drains: dict[str, DrainState] = {}

    @property
    def models(self) -> frozenset[str]:
        """Names of the draining remote models, which may still have requests running."""
        return frozenset(self._drains)

    def follow_desired(self, previous_desired: DesiredState | None, desired: DesiredState, now: float) -> None:
        """Begin the drain of each remote model that has become unwanted, and end that of each that is wanted again or
        no longer declared. `now` is Unix time. `previous_desired` is the last round's desired state; None in the first
        round, which begins no drain."""
        previous_models = previous_desired.models if previous_desired is not None else {}
        for name, model in desired.models.items():
            previous_model = previous_models.get(name)
            if model.replicas or model.runs:
                self._drains.pop(name, None)
            elif previous_model is not None and previous_model.replicas and not previous_model.runs:
                self._drains.setdefault(name, DrainState(now))
        self._drains = {name: drain for name, drain in self._drains.items() if name in desired.models}

    def note_published(self, stamp: Stamp) -> None:
        """Note, for drains that have none yet, the stamp of the published table, from which on gateways send draining
        models no new requests. Until then, no drain ends as empty."""
        self._drains = {
            name: DrainState(drain.since, drain.unrouted_stamp or stamp) for name, drain in self._drains.items()
        }

    def forget_empty(self, gateways: Iterable[GatewayView], now: float) -> None:
        """End the drains of models without running requests. `now` is Unix time. Every connected gateway must report
        none. A lost one is waited for until 5 s (`ARRIVAL_S`) after its loss; where there is no gateway, the drain
        lasts 5 s."""
        views = present_gateways(gateways, now)
        loss_times = [view.lost_at for view in views if view.lost_at is not None]
        kept_drains = {}
        for name, drain in self._drains.items():
            is_empty = is_drained(name, drain, views, None, now=now, unsure=False)
            is_known_soon = is_empty is None and now < max([drain.since, *loss_times]) + ARRIVAL_S
            if is_empty is False or is_known_soon:
                kept_drains[name] = drain
        self._drains = kept_drains


KEPT_S: Final = 60.0
"""Seconds for which the results of the last gateway still count after its loss: enough for a restart of a gateway."""
_KEY: Final = re.compile(r"[!-~]+(?: [!-~]+)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class GatewayResult:
    """How one gateway last found a remote model. Times are Unix times in seconds: `at` and `retry_at` by the gateway's
    clock, `heard_at` by the controller's. `error` None: the remote is healthy."""

    error: str | None
    at: float
    heard_at: float
    retry_at: float | None = None
    """When the gateway probes again after a failure, by its clock; None: the remote is healthy, or a probe is useless
    before the API key changes."""


def judge_remote(results: Mapping[str, GatewayResult], connected: Collection[str], now: float) -> GatewayResult | None:
    """Combine the results of all gateways for one remote model, and return one gateway's: the newest healthy one, else
    the newest error; None if no gateway has a result that counts.

    `results` is by gateway id, `connected` the ids of connected gateways, `now` Unix time. A remote is healthy if any
    gateway finds it healthy: all gateways share one routing table, and while a gateway that alone cannot reach the
    remote fails only its own clients, removing the route would fail everybody's. The results of connected gateways
    count; if there are none, those of lost gateways count for 60 s (`KEPT_S`) after they were heard.
    """
    known_results = [result for gateway, result in results.items() if gateway in connected] or [
        result for result in results.values() if now - result.heard_at < KEPT_S
    ]
    return min(known_results, key=lambda result: (result.error is not None, -result.heard_at), default=None)


@dataclass(slots=True)
class _RemoteState:
    spec: str
    key: str | None = None
    probe: RemoteProbe | None = None
    """What gateways probe; None: the model's API key cannot be read."""
    problem: str | None = None
    """Why the API key cannot be read; None: it can, or the remote needs none."""
    results: dict[str, GatewayResult] = field(default_factory=dict)
    """The last result of each gateway, by gateway id."""
    reset_count: int = 0
    void_results: dict[str, float] = field(default_factory=dict)
    """Gateway id to the time `at` of a result from before a reset, which no longer counts."""


class RemoteHealth:
    """The health and the API key of each remote model. Gateways probe; their reports bring the results. Keys are read
    again at every `track_models`, which each round of the reconciler calls."""

    def __init__(
        self,
        hub: GatewayHub,
        *,
        interval_s: float,
        timeout_s: float,
        wake: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        """Start without models. Gateways probe every `interval_s` seconds, and give up after `timeout_s` seconds.
        `wake` wakes the reconciler, `clock` returns Unix time in seconds."""
        self._hub = hub
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._wake = wake
        self._clock = clock
        self._remote_states: dict[str, _RemoteState] = {}
        self._known_errors: dict[str, str | None] = {}
        self._known_retries: dict[str, float] = {}
        self._report_received = asyncio.Event()

    def track_models(self, models: Iterable[DesiredModel]) -> None:
        """Track exactly the remote ones of these models from now on, and read their API keys, which blocks on key
        files. Gateways learn what to probe from the next table (`list_probes`). A model whose spec hash changed
        starts anew. A key that cannot be read raises nothing: it becomes the model's error. What gateways reported that
        the hub has forgotten is dropped once it does not count any more."""
        gateways, now = {view.report.gateway_id for view in self._hub.views}, self._clock()
        tracked_states: dict[str, _RemoteState] = {}
        for model in models:
            remote = REPLICA_ENGINES[model.backend].describe_remote(model.definition)
            if remote is None:
                continue
            remote_state = self._remote_states.get(model.name)
            if remote_state is None or remote_state.spec != model.spec_hash:
                remote_state = self._new_state(model)
            remote_state.results = {
                gateway: result
                for gateway, result in remote_state.results.items()
                if gateway in gateways or now - result.heard_at < KEPT_S
            }
            remote_state.void_results = {
                gateway: at for gateway, at in remote_state.void_results.items() if gateway in gateways
            }
            self._read_key(remote, remote_state)
            tracked_states[model.name] = remote_state
        self._remote_states = tracked_states

    async def wait_for_first_round(self, loaded_before: Collection[str]) -> None:
        """Wait for the first report of a gateway, but for 5 s (`ARRIVAL_S`) at most, since there may be no gateway.
        Returns either way. Call it after the first `track_models`. Without it, a new controller's first table would
        drop remote models that the previous controller routed to. `loaded_before` names the models loaded then; if no
        remote model is among them, there is no wait."""
        if not any(name in loaded_before for name in self._remote_states):
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(ARRIVAL_S):
                await self._report_received.wait()

    def take_report(self, report: GatewayReport) -> None:
        """Store the results in a gateway's report, in place of that gateway's earlier ones; wake the reconciler if a
        remote's error or retry time changes. Secrets in errors are masked."""
        now = self._clock()
        for name, remote_state in self._remote_states.items():
            _take_result(remote_state, report.gateway_id, report.remotes.get(name), now)
        self._report_received.set()
        errors, retries = self.list_errors(), self.list_retries()
        for name, error in errors.items():
            if name not in self._known_errors or error != self._known_errors[name]:
                log.info("remote model %s: %s", name, error or "healthy")
        if (errors, retries) != (self._known_errors, self._known_retries):
            self._known_errors, self._known_retries = errors, retries
            self._wake()

    def list_errors(self) -> dict[str, str | None]:
        """Return each remote model's error by name. None: healthy. A model that no gateway has reported on is absent,
        unless its API key cannot be read."""
        errors: dict[str, str | None] = {name: result.error for name, result in self._judge_all().items()}
        for name, remote_state in self._remote_states.items():
            if remote_state.problem is not None:
                errors[name] = remote_state.problem
        return errors

    def list_retries(self) -> dict[str, float]:
        """Return, by name of each failed remote model, the Unix time of its next probe, by the clock of the gateway
        that probes. Absent are healthy models, and models whose probes are useless before their API key changes."""
        return {name: result.retry_at for name, result in self._judge_all().items() if result.retry_at is not None}

    def _judge_all(self) -> dict[str, GatewayResult]:
        """Return the combined result of each model whose API key can be read and that a gateway has reported on."""
        connected, now = self._hub.connected_ids, self._clock()
        judged_results = {
            name: judge_remote(remote_state.results, connected, now)
            for name, remote_state in self._remote_states.items()
            if remote_state.problem is None
        }
        return {name: result for name, result in judged_results.items() if result is not None}

    def list_probes(self) -> dict[str, RemoteProbe]:
        """Return what gateways are to probe, by name of the remote model. A model without a readable key is absent."""
        return {name: each.probe for name, each in self._remote_states.items() if each.probe is not None}

    def reset_health(self, name: str) -> None:
        """Forget the results of one remote model, and have gateways probe it at once when they get the next table. Only
        new results count then. Does not wake the reconciler. Does nothing for a name that is not tracked."""
        if remote_state := self._remote_states.get(name):
            remote_state.reset_count += 1
            remote_state.void_results |= {gateway: result.at for gateway, result in remote_state.results.items()}
            remote_state.results.clear()

    def knows_model(self, name: str) -> bool:
        """Return whether this is the name of a tracked remote model."""
        return name in self._remote_states

    def read_token(self, name: str) -> str | None:
        """Return the API key for a tracked remote model; None if the remote needs none, or the key cannot be read."""
        return self._remote_states[name].key

    def _new_state(self, model: DesiredModel) -> _RemoteState:
        """Return the state of a newly tracked model, with the results that gateways have already reported."""
        remote_state = _RemoteState(model.spec_hash)
        now = self._clock()
        for view in self._hub.views:
            heard_at = now if view.lost_at is None else view.lost_at
            _take_result(remote_state, view.report.gateway_id, view.report.remotes.get(model.name), heard_at)
        return remote_state

    def _read_key(self, remote: Remote, remote_state: _RemoteState) -> None:
        key, problem = _find_key(remote)
        if problem is not None and problem != remote_state.problem:
            log.info("remote model without its key: %s", problem)
        remote_state.key, remote_state.problem = key, problem
        remote_state.probe = (
            RemoteProbe(
                url=remote.base_url + remote.health_path,
                spec=remote_state.spec,
                token=SecretStr(key) if key else None,
                reset_count=remote_state.reset_count,
                interval_s=self._interval_s,
                timeout_s=self._timeout_s,
            )
            if problem is None
            else None
        )


def _take_result(remote_state: _RemoteState, gateway: str, result: RemoteResult | None, heard_at: float) -> None:
    if result is None or result.spec != remote_state.spec or remote_state.void_results.get(gateway) == result.at:
        remote_state.results.pop(gateway, None)
        return
    # Gateways mask secrets in their reports too, but what is published here must not depend on that.
    error = result.error if result.error is None else mask_text(result.error)
    if error is not None and remote_state.key:
        error = replace_secrets(error, {remote_state.key})
    remote_state.results[gateway] = GatewayResult(error, result.at, heard_at, result.retry_at)


def _find_key(remote: Remote) -> tuple[str | None, str | None]:
    """Return the API key and None, or None and what is wrong with the key; (None, None) if the remote needs none."""
    if remote.api_key_env is not None:
        key, place = os.environ.get(remote.api_key_env, "").strip(), f"environment variable {remote.api_key_env}"
        if not key:
            return None, f"{place} (api_key_env) is not set"
    elif remote.api_key_file is not None:
        place = f"api_key_file {remote.api_key_file}"
        try:
            key = Path(remote.api_key_file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            return None, f"{place} cannot be read: {error}"
        if not key:
            return None, f"{place} is empty"
    else:
        return None, None
    return (key, None) if _KEY.fullmatch(key) else (None, f"{place} holds characters that no header can carry")
