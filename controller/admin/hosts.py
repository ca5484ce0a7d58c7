"""Operators' requests about hosts: the list, drains, and forgetting one that is gone for good."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from contract.admin import HostDetails, HostList
from contract.errors import RoundhouseError
from controller.config.messages import suggest_name
from controller.desired.source import DesiredStateSource
from controller.hosts import Host, HostState
from controller.journal import Recorder
from controller.model_status import Round
from controller.reports.views import host_details
from controller.runtimes.base import RuntimeUnavailableError

log = logging.getLogger(__name__)

ExpelHost = Callable[[str], Awaitable[None]]
"""Forgets a host, by its name, and what was known of it, so that it no longer counts. Raises RuntimeUnavailableError
where the host answers after all."""


class HostService:
    """Shows the hosts of one controller, drains them and forgets them. A drain is in force, and written to the state
    folder, before a method returns; engines move afterwards. Before the first observation every method raises
    RoundhouseError `controller_unavailable`."""

    def __init__(
        self,
        read_round: Callable[[], Round],
        files: DesiredStateSource,
        recorder: Recorder,
        *,
        expel_host: ExpelHost | None,
        wake: Callable[[], None],
    ) -> None:
        """`read_round` returns the last round, or raises `controller_unavailable`. `expel_host` None: the runtime has
        one host, which cannot be forgotten. `wake` makes the controller plan again."""
        self._read_round = read_round
        self._files = files
        self._recorder = recorder
        self._expel_host = expel_host
        self._wake = wake

    def list_hosts(self) -> HostList:
        """Return all hosts, by name, with drains that no round has seen yet."""
        observed, drained = self._read_round().observed, self._files.drained_hosts()
        hosts = [host_details(with_drain(host, drained), observed) for host in observed.hosts]
        return HostList(hosts=hosts, is_cut_off=observed.is_cut_off)

    def drain_host(self, name: str, *, actor: str) -> HostDetails:
        """Let nothing more be started on a host, and what runs there move to others, for `actor`. Draining it again
        changes nothing. Raises RoundhouseError: `unknown_host`; `last_host` if no other host is ready."""
        host = self._find(name)
        drained = self._files.drained_hosts()
        if name not in drained:
            others = (with_drain(each, drained) for each in self._read_round().observed.hosts if each.name != name)
            if not any(each.state is HostState.READY for each in others):
                words = f"No other host than {name} is ready, so that what runs there could move nowhere."
                raise RoundhouseError("last_host", words, param="name")
            self._set_drained(host, True, actor)
        return self._view(name)

    def undrain_host(self, name: str, *, actor: str) -> HostDetails:
        """Let engines be started on a host again, for `actor`. A host that is not drained stays as it is. Raises
        RoundhouseError `unknown_host`."""
        host = self._find(name)
        if name in self._files.drained_hosts():
            self._set_drained(host, False, actor)
        return self._view(name)

    async def remove_host(self, name: str, confirm: str, *, actor: str) -> HostDetails:
        """Forget a host that is gone for good, for `actor`, and return what was last known of it. What ran there counts
        as gone at once. Raises RoundhouseError: `unknown_host`; `invalid_request` if `confirm` is not its name;
        `host_answers` if it answers."""
        host = self._find(name)
        if confirm != name:
            words = f"`confirm` must be the host's name, {name}, and is {confirm!r:.200}."
            raise RoundhouseError("invalid_request", words, param="confirm")
        if host.state not in (HostState.SILENT, HostState.LOST):
            words = f"Host {name} answers (it is {host.state}), and would be back at once."
            raise RoundhouseError("host_answers", words, param="name")
        view = self._view(name)
        assert self._expel_host is not None, "a host with a name is one of several"
        try:
            await self._expel_host(name)
        except RuntimeUnavailableError as error:
            raise RoundhouseError("host_answers", f"Host {name} is not forgotten: {error}.", param="name") from None
        self._files.set_drained(name, False)
        self._record(f"host {name} forgotten by {actor}", actor, "forget", name)
        return view

    def _find(self, name: str) -> Host:
        hosts = {host.name: host for host in self._read_round().observed.hosts if host.name}
        if name not in hosts:
            if not hosts:
                words = f"There is no host named {name!r:.200}, and no other host: this installation has one"
                raise RoundhouseError("unknown_host", f"{words}, which has no name.", param="name")
            known = f"; the hosts are {', '.join(hosts)}{suggest_name(name, hosts)}"
            raise RoundhouseError("unknown_host", f"There is no host named {name!r:.200}{known}.", param="name")
        return hosts[name]

    def _view(self, name: str) -> HostDetails:
        return host_details(with_drain(self._find(name), self._files.drained_hosts()), self._read_round().observed)

    def _set_drained(self, host: Host, is_drained: bool, actor: str) -> None:
        word = "drain" if is_drained else "undrain"
        self._files.set_drained(host.name, is_drained)
        self._record(f"{word} of host {host.name} ordered by {actor}", actor, word, host.name)

    def _record(self, words: str, actor: str, action: str, host: str) -> None:
        log.info("%s", words)
        self._recorder.record_statement(words, actor, {"action": action, "host": host})
        self._wake()


def with_drain(host: Host, drained: Mapping[str, float]) -> Host:
    """Return a host as the next round will have it, where its drain began or ended after the last one. `drained`: names
    of the hosts that are drained, to the Unix time since when."""
    if host.state is HostState.READY and host.name in drained:
        return replace(host, state=HostState.DRAINING, since=drained[host.name])
    if host.state is HostState.DRAINING and host.name not in drained:
        return replace(host, state=HostState.READY, since=0.0)
    return host
