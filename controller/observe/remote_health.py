"""Models that are served elsewhere: their keys, and whether they answer."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from controller.engines import ENGINES
from controller.engines.base import Remote
from controller.redaction.patterns import mask_text
from controller.state import DesiredModel

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _RemoteState:
    remote: Remote
    task: asyncio.Task[None]
    first_answer: asyncio.Event = field(default_factory=asyncio.Event)
    error: str | None = None


class RemoteHealth:
    """Asks each remote's health path from time to time, and reads its key afresh each time."""

    def __init__(
        self, session: aiohttp.ClientSession, *, interval_s: float, timeout_s: float, wake: Callable[[], None]
    ) -> None:
        self._session = session
        self._interval_s = interval_s
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._wake = wake
        self._remote_states: dict[str, _RemoteState] = {}

    def track_models(self, models: Iterable[DesiredModel]) -> None:
        """Ask exactly these from now on."""
        remotes = {model.name: ENGINES[model.backend].describe_remote(model.definition) for model in models}
        for name, remote_state in list(self._remote_states.items()):
            if remotes.get(name) != remote_state.remote:
                remote_state.task.cancel()
                del self._remote_states[name]
        for name, remote in remotes.items():
            if remote is not None and name not in self._remote_states:
                self._remote_states[name] = _RemoteState(
                    remote, asyncio.create_task(self._run(name), name=f"remote {name}")
                )

    async def wait_for_first_round(self) -> None:
        """Wait until every remote was asked once. Bounded: one that hangs is not waited for."""
        wait_tasks = [
            asyncio.ensure_future(remote_state.first_answer.wait()) for remote_state in self._remote_states.values()
        ]
        if wait_tasks:
            _, late_tasks = await asyncio.wait(wait_tasks, timeout=self._timeout.total)
            for wait_task in late_tasks:
                wait_task.cancel()

    def list_errors(self) -> dict[str, str | None]:
        """Remote model to its last error; None: it is well; absent: not asked yet."""
        return {
            name: remote_state.error
            for name, remote_state in self._remote_states.items()
            if remote_state.first_answer.is_set()
        }

    def reset_health(self, name: str) -> None:
        """Forget what a remote last said."""
        if remote_state := self._remote_states.pop(name, None):
            remote_state.task.cancel()

    def knows_model(self, name: str) -> bool:
        """Whether this name is a remote model's."""
        return name in self._remote_states

    def read_token(self, name: str) -> str | None:
        """The key for a remote model; None: it needs none, or it cannot be read."""
        key, _ = _read_key(self._remote_states[name].remote)
        return key

    async def close(self) -> None:
        """Stop asking."""
        tasks = [remote_state.task for remote_state in self._remote_states.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, name: str) -> None:
        remote_state = self._remote_states[name]
        while True:
            try:
                error = await self._probe_remote(remote_state.remote)
            except Exception as fault:
                # Whatever one remote brings out must not take its own watch, or the others' controller, away.
                log.exception("asking the remote model %s failed", name)
                error = f"internal error: {fault!r}"
            # The address may hold a user and a password.
            error = mask_text(error) if error is not None else None
            has_changed = error != remote_state.error or not remote_state.first_answer.is_set()
            remote_state.error = error
            remote_state.first_answer.set()
            if has_changed:
                log.info("remote model %s: %s", name, error or "well")
                self._wake()
            await asyncio.sleep(self._interval_s)

    async def _probe_remote(self, remote: Remote) -> str | None:
        key, problem = _read_key(remote)
        if problem is not None:
            return problem
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        url = remote.base_url + remote.health_path
        try:
            async with self._session.get(url, headers=headers, timeout=self._timeout) as answer:
                if answer.status == 200:
                    return None
                hint = "; its key was refused" if answer.status in (401, 403) else ""
                return f"{url} answers HTTP {answer.status}{hint}"
        except TimeoutError:
            return f"{url} does not answer in time"
        except (aiohttp.ClientError, OSError) as error:
            return f"{url} cannot be reached: {error}"


def _read_key(remote: Remote) -> tuple[str | None, str | None]:
    """The key, or what is wrong with it."""
    if remote.api_key_env is not None:
        key = os.environ.get(remote.api_key_env, "").strip()
        return (key, None) if key else (None, f"environment variable {remote.api_key_env} (api_key_env) is not set")
    if remote.api_key_file is not None:
        try:
            key = Path(remote.api_key_file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            return None, f"api_key_file {remote.api_key_file} cannot be read: {error}"
        return (key, None) if key else (None, f"api_key_file {remote.api_key_file} is empty")
    return None, None
