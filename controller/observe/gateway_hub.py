"""Keeps track of the gateways that are or were connected: publishes routing tables to them, collects their reports."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from common.processes import read_host
from controller.planning.draining import FORGET_S, GatewayView
from controller.planning.gateway_place import PlaceHolder, describe_refusal, find_rival, process_of
from controller.runtimes.process.stat import Process, is_alive, read_stat
from controller.schema.keys import Key
from controller.schema.routing import GatewayProcess, GatewayReport, ModelRoute, RoutingTable, Stamp
from controller.schema.tools import McpServerRoute, ToolRoute

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
    """Holds the current routing table and the last report of the gateway, and those of former ones that may still hold
    requests. The reconciler publishes tables; each gateway's link asks for the place (`admit_gateway`), waits for
    tables and brings reports. Belongs to one event loop."""

    def __init__(
        self,
        instance: str,
        epoch: int,
        *,
        wake: Callable[[], None],
        clock: Callable[[], float],
        on_link: Callable[[str, bool], None] = lambda *_: None,
        place: GatewayPlace | None = None,
    ) -> None:
        """Start without a table and without gateways.

        `instance` and `epoch` go into every table; the epoch must be greater than that of any earlier controller.
        `wake` wakes the reconciler. `clock` returns Unix time in seconds. `on_link(gateway_id, connected)` is called
        when a gateway's first link opens (True) and when its last one has ended (False). `place` None: nobody had the
        place before, and nobody is told who has it.
        """
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
        the gateways that are refused now.

        If they equal the current table, it stays in force with its stamp, and nothing is sent to gateways. The last use
        of models that are not among `models` is forgotten.
        """
        names = {route.name for route in models}
        self._last_used = {name: at for name, at in self._last_used.items() if name in names}
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
        """Store a gateway's report, which replaces its previous one, and note when its models were last used.

        Wakes the reconciler if the gateway is new or was lost, or if the report changes what is decided. Blocks for a
        write to the state folder only where who has the place could not be stored before.
        """
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
        """A sentence for each gateway that is refused, in the order of their first questions: until 15 s
        (`REFUSAL_SHOWN_S`) after its last one, as `forget_lost` sees it."""
        return tuple(words for words, _ in self._refusals.values())

    def admit_gateway(self, report: GatewayReport) -> str | None:
        """Decide whether the gateway whose link begins with this report gets the place (`find_rival`). Return None if
        so: call `open_link` and `take_report` then. Else return why not, in one sentence; the table names it, too.
        Blocks for a write to the state folder if it is another process than before.
        """
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
        """Note that a link of a gateway ended. After the last one, the gateway's request counts are unknown, `on_link`
        is called, and the reconciler is woken. Raises KeyError if no link of the gateway is open.

        A gateway that reported that it ends is forgotten; any other one counts as lost from now on.
        """
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


def _changes_decision(previous: GatewayReport, report: GatewayReport) -> bool:
    """Return whether the next plan may depend on the difference between two reports of one gateway.

    It may if the gateway applied another table, saw demand or a failed connection, or if a replica there became empty.
    """
    return (previous.stamp, previous.demand, previous.failed) != (report.stamp, report.demand, report.failed) or any(
        name not in report.inflight for name in previous.inflight
    )
