"""Models that are served elsewhere: their keys, and whether they answer, as gateways see it.

The controller has no way out of its host and asks no remote itself: the routing table tells gateways what to ask, and
their reports say what came of it.
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

from controller.engines import ENGINES
from controller.engines.base import Remote
from controller.observe.gateway_hub import GatewayHub
from controller.planning.draining import ARRIVAL_S
from controller.redaction.patterns import mask_text, replace_secrets
from controller.schema.routing import GatewayReport, RemoteProbe, RemoteResult
from controller.state import DesiredModel

log = logging.getLogger(__name__)

KEPT_S: Final = 60.0
"""What the last gateway said counts for so long after it has gone: enough for a gateway to be started again."""
_KEY: Final = re.compile(r"[!-~]+(?: [!-~]+)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class GatewayResult:
    """How one gateway last found a remote model. Times are Unix times in seconds: `at` and `retry_at` by the gateway's
    clock, `heard_at` by the controller's. `error` None: the remote is well. `retry_at`: when it is asked again; None:
    it is well, or only another key helps."""

    error: str | None
    at: float
    heard_at: float
    retry_at: float | None = None


def judge_remote(results: Mapping[str, GatewayResult], connected: Collection[str], now: float) -> GatewayResult | None:
    """Combine the results of all gateways for one remote model; None: no gateway has a result that counts.

    It is well if any gateway finds it so. One table routes for all gateways: a gateway that alone cannot reach the
    remote fails the requests of its own clients, and without a route everybody's would fail. Connected gateways rule;
    what others said counts while none has said anything, for `KEPT_S`.
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
    """None: its key cannot be read."""
    problem: str | None = None
    """What is wrong with its key."""
    results: dict[str, GatewayResult] = field(default_factory=dict)
    """By gateway."""
    reset_count: int = 0
    void_results: dict[str, float] = field(default_factory=dict)
    """Gateway to the time `at` of the result that counts no more."""


class RemoteHealth:
    """What is known of each remote model. Reads its key afresh in each round of the controller."""

    def __init__(
        self,
        hub: GatewayHub,
        *,
        interval_s: float,
        timeout_s: float,
        wake: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        """`interval_s` and `timeout_s` are those of the gateways' questions."""
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
        """Have exactly these asked from now on, with the keys that they have now."""
        tracked_states: dict[str, _RemoteState] = {}
        for model in models:
            remote = ENGINES[model.backend].describe_remote(model.definition)
            if remote is None:
                continue
            remote_state = self._remote_states.get(model.name)
            if remote_state is None or remote_state.spec != model.spec_hash:
                remote_state = self._new_state(model)
            self._read_key(remote, remote_state)
            tracked_states[model.name] = remote_state
        self._remote_states = tracked_states

    async def wait_for_first_round(self, loaded_before: Collection[str]) -> None:
        """Wait until a gateway has told of remotes that were served before this controller, so that its first table
        does not take them away. Bounded: there may be no gateway."""
        if not any(name in loaded_before for name in self._remote_states):
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(ARRIVAL_S):
                await self._report_received.wait()

    def take_report(self, report: GatewayReport) -> None:
        """Take what a gateway says of remotes; wake the loop where that changes what is known."""
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
        """Remote model to its last error; None: it is well; absent: no gateway has told yet."""
        errors: dict[str, str | None] = {name: result.error for name, result in self._judge_all().items()}
        for name, remote_state in self._remote_states.items():
            if remote_state.problem is not None:
                errors[name] = remote_state.problem
        return errors

    def list_retries(self) -> dict[str, float]:
        """Remote model that has failed to Unix time when it is asked again; absent: only another key helps."""
        return {name: result.retry_at for name, result in self._judge_all().items() if result.retry_at is not None}

    def _judge_all(self) -> dict[str, GatewayResult]:
        """Of those whose keys can be read, and that some gateway has told of."""
        connected, now = self._hub.connected_ids, self._clock()
        judged_results = {
            name: judge_remote(remote_state.results, connected, now)
            for name, remote_state in self._remote_states.items()
            if remote_state.problem is None
        }
        return {name: result for name, result in judged_results.items() if result is not None}

    def list_probes(self) -> dict[str, RemoteProbe]:
        """Remote model to what gateways shall ask."""
        return {name: each.probe for name, each in self._remote_states.items() if each.probe is not None}

    def reset_health(self, name: str) -> None:
        """Forget what gateways last said of a remote, and have them ask it at once: their next answers count."""
        if remote_state := self._remote_states.get(name):
            remote_state.reset_count += 1
            remote_state.void_results |= {gateway: result.at for gateway, result in remote_state.results.items()}
            remote_state.results.clear()

    def knows_model(self, name: str) -> bool:
        """Whether this name is a remote model's."""
        return name in self._remote_states

    def read_token(self, name: str) -> str | None:
        """The key for a remote model; None: it needs none, or it cannot be read."""
        return self._remote_states[name].key

    def _new_state(self, model: DesiredModel) -> _RemoteState:
        """With what gateways have reported before anybody asked for it."""
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
    # Gateways mask what they say; what is published does not depend on that.
    error = result.error if result.error is None else mask_text(result.error)
    if error is not None and remote_state.key:
        error = replace_secrets(error, {remote_state.key})
    remote_state.results[gateway] = GatewayResult(error, result.at, heard_at, result.retry_at)


def _find_key(remote: Remote) -> tuple[str | None, str | None]:
    """The key, or what is wrong with it."""
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
