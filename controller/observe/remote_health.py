"""Health and API keys of remote models, which somebody else's server serves.

The controller has no network access beyond its host, so it probes no remote itself. The routing table tells gateways
what to probe, and their reports bring the results.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydantic import SecretStr

from controller.engines import REPLICA_ENGINES
from controller.engines.base import Remote
from controller.observe.gateway_hub import GatewayHub
from controller.planning.draining import ARRIVAL_S
from controller.redaction.patterns import mask_text, replace_secrets
from controller.schema.routing import GatewayReport, RemoteProbe, RemoteResult
from controller.state import DesiredModel

log = logging.getLogger(__name__)

KEPT_S: Final = 60.0
"""Seconds for which the results of the last gateway still count after its loss: enough for a restart of a gateway."""
_KEY: Final = re.compile(r"[!-~]+(?: [!-~]+)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class GatewayResult:
    """How one gateway last found a remote model. Times are Unix times in seconds: `at` and `retry_at` by the gateway's
    clock, `heard_at` by the controller's. `error` None: the remote is healthy."""

    error: str | None
    """What is wrong with the remote; None: it is healthy."""
    at: float
    """When the remote answered, by the gateway's clock."""
    heard_at: float
    """When the controller got this result, by the controller's clock."""
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
        starts anew. A key that cannot be read raises nothing: it becomes the model's error."""
        tracked_states: dict[str, _RemoteState] = {}
        for model in models:
            remote = REPLICA_ENGINES[model.backend].describe_remote(model.definition)
            if remote is None:
                continue
            remote_state = self._remote_states.get(model.name)
            if remote_state is None or remote_state.spec != model.spec_hash:
                remote_state = self._new_state(model)
            self._read_key(remote, remote_state)
            tracked_states[model.name] = remote_state
        self._remote_states = tracked_states

    async def wait_for_first_round(self, loaded_before: Collection[str]) -> None:
        """Wait for the first report of a gateway, but for 5 s (`ARRIVAL_S`) at most, since there may be no gateway.
        Returns either way. Call it after the first `track_models`.

        Without it, a new controller's first table would drop remote models that the previous controller routed to.
        `loaded_before` names the models loaded then; if no remote model is among them, there is no wait.
        """
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
                log.info("remote model %s: %s", name, error or "well")
        if (errors, retries) != (self._known_errors, self._known_retries):
            self._known_errors, self._known_retries = errors, retries
            self._wake()

    def list_errors(self) -> dict[str, str | None]:
        """Return each remote model's error by name. None: healthy. A model that no gateway has reported on is absent,
        unless its API key cannot be read.
        """
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
        """Return the API key for a remote model; None if the remote needs none, or if the key cannot be read.

        Raises KeyError for a name that is not tracked.
        """
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
