"""Stops engines of an instance whose controller no longer runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

from controller.cli.exit_codes import CommandError, ExitCode
from controller.runtimes import open_runtime
from controller.runtimes.base import Runtime, RuntimeUnavailableError, SeenReplica
from controller.settings import ControllerSettings
from controller.state import Phase
from controller.storage.state_dir import StateDir, StateError, StateLockedError

IDENTITY_NAME = "identity.json"
POLL_S = 0.1
"""Seconds between two tries to lock the state folder."""


async def stop_orphans(settings: ControllerSettings, *, grace_s: float, lock_wait_s: float) -> list[str]:
    """Stop and remove every replica of this installation (the instance that the state folder names), and return the
    replicas' names. Empty where nothing ran, or where the state folder names no instance.

    `grace_s`: seconds from SIGTERM to SIGKILL of each engine. Waits up to `lock_wait_s` seconds for the lock of the
    state folder, which a controller holds until it has ended, and holds it meanwhile. Raises CommandError where the
    folder cannot be used or stays locked (ExitCode.LOCKED), where a runtime that is set explicitly cannot be opened, or
    where a runtime fails while engines are stopped.
    """
    if not (settings.state / IDENTITY_NAME).exists():
        return []
    store = await _wait_for_state_dir(settings.state, settings.instance, lock_wait_s)
    try:
        return [name for kind in _kinds(settings) for name in await _stop_all(settings, store.instance, kind, grace_s)]
    finally:
        store.close()


async def _wait_for_state_dir(state: Path, instance: str | None, wait_s: float) -> StateDir:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    while True:
        try:
            return StateDir.open_folder(state, instance)
        except StateLockedError as error:
            if loop.time() >= deadline:
                raise CommandError(str(error), ExitCode.LOCKED) from None
        except StateError as error:
            raise CommandError(str(error)) from None
        await asyncio.sleep(POLL_S)


def _kinds(settings: ControllerSettings) -> tuple[str, ...]:
    # Engines of one runtime are still there when `auto` now chooses the other.
    return ("process", "docker") if settings.runtime == "auto" else (settings.runtime,)


async def _stop_all(settings: ControllerSettings, instance: str, kind: str, grace_s: float) -> list[str]:
    try:
        runtime = await open_runtime(settings.model_copy(update={"runtime": kind}), instance)
    except RuntimeUnavailableError as error:
        if settings.runtime == "auto":
            return []
        raise CommandError(f"the {kind} runtime cannot be asked what runs: {error}") from None
    try:
        stopped_names: list[str] = []
        while replicas := await runtime.list_replicas():
            await asyncio.gather(*(_stop_replica(runtime, replica, grace_s) for replica in replicas))
            stopped_names += (replica.name for replica in replicas)
        return sorted(set(stopped_names))
    except RuntimeUnavailableError as error:
        raise CommandError(f"the {kind} runtime does not answer: {error}") from None
    finally:
        await runtime.close()


async def _stop_replica(runtime: Runtime, replica: SeenReplica, grace_s: float) -> None:
    if replica.phase is Phase.RUNNING:
        await runtime.stop_replica(replica.name, grace_s)
    else:
        await runtime.remove_replica(replica.name)
