"""Where replicas run: `base` declares the protocol `Runtime`, `docker`, `process`, `cluster` implement it. The only
package that starts, signals or stops engines. `nvml` reads the host's GPUs.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import psutil

from controller.hosts import HostState
from controller.runtimes.base import Runtime, RuntimeUnavailableError, SeenReplica
from controller.settings import ControllerSettings
from controller.state import Phase

log = logging.getLogger(__name__)

UNREACHED_S: Final = 5.0
"""Seconds for which a host that does not answer is asked again before its engines are left as they are."""
_ASK_AGAIN_S: Final = 0.2


def read_memory_limit(settings: ControllerSettings) -> tuple[int, bool]:
    """Return the MiB of main memory of this machine that all engines may use together, and whether a setting keeps that
    below the machine's memory."""
    machine_mib = psutil.virtual_memory().total // 2**20
    limit_mib = settings.engines_memory_mib
    return limit_mib or machine_mib, limit_mib is not None and limit_mib < machine_mib


async def end_replicas(runtime: Runtime, grace_s: float) -> list[str]:
    """Stop and remove every replica, with `grace_s` seconds from SIGTERM to SIGKILL of each, and return the names of
    those that have ended. What runs on hosts that cannot be reached is left as it is; the log names them. Raises
    RuntimeUnavailableError if the runtime does not answer, once the ends under way are over."""
    from controller.runtimes.cluster.runtime import ClusterRuntime

    ended: set[str] = set()
    loop = asyncio.get_running_loop()
    waits_until: float | None = None
    while replicas := await runtime.list_replicas():
        if waits_until is None:
            log.info("stopping %d engines", len(replicas))
        # Those of a host that does not answer, too: it may only be slow.
        ends = (_end_replica(runtime, each, grace_s) for each in replicas)
        results = await asyncio.gather(*ends, return_exceptions=True)
        for failure in results:
            if isinstance(failure, BaseException):
                raise failure
        names = {each.name for each, has_ended in zip(replicas, results, strict=True) if has_ended}
        ended |= names
        if not names:
            waits_until = waits_until or loop.time() + UNREACHED_S
            if loop.time() >= waits_until:
                break
            await asyncio.sleep(_ASK_AGAIN_S)
    unreached = {each.host for each in replicas}
    if isinstance(runtime, ClusterRuntime):  # also those that were never heard
        unreached |= {each.name for each in await runtime.read_hosts() if each.state is HostState.SILENT}
    if unreached:
        log.warning("engines go on running on hosts that cannot be reached: %s", ", ".join(sorted(unreached)))
    return sorted(ended)


async def _end_replica(runtime: Runtime, replica: SeenReplica, grace_s: float) -> bool:
    """Return whether it has ended. False: its host, one of several, could not do that. Raises
    RuntimeUnavailableError on an only host."""
    try:
        if replica.phase is Phase.RUNNING:
            await runtime.stop_replica(replica.name, grace_s)
        else:
            await runtime.remove_replica(replica.name)
    except RuntimeUnavailableError as error:
        if not replica.host:
            raise
        log.debug("%s is not ended: %s", replica.name, error)
        return False
    return True


async def open_runtime(settings: ControllerSettings, instance: str) -> Runtime:
    """Create the runtime that `settings.runtime` names: `docker`, `process`, or `auto`, which is docker if a Docker
    Engine answers, else process. The caller must close the runtime. `instance` is this installation's id. Raises
    RuntimeUnavailableError if docker is named and does not answer or cannot be used. With `auto`, the reason is only
    logged. Raises OSError if a folder of the process runtime cannot be made."""
    if settings.hosts:
        return await _open_cluster(settings, instance)
    if settings.runtime != "process":
        # The Docker client costs 60 ms and 20 MB to import: only who uses it pays.
        from controller.runtimes.docker.runtime import DockerOptions, open_docker

        try:
            options = DockerOptions(
                instance=instance,
                models=settings.models.absolute(),
                state=settings.state.absolute(),
                images={**settings.images, "controller": settings.image_controller},
                engines_network=settings.engines_network,
                log_mib=settings.engine_log_mib,
            )
            return await open_docker(options)
        except RuntimeUnavailableError as error:
            if settings.runtime == "docker":
                raise
            log.info("no Docker Engine answers (%s): engines run as processes", error)
    from controller.runtimes.process.runtime import ProcessRuntime

    return ProcessRuntime(
        instance, settings.state.absolute(), settings.models.absolute(), log_mib=settings.engine_log_mib
    )


async def _open_cluster(settings: ControllerSettings, instance: str) -> Runtime:
    """Create the runtime over several hosts. Raises RuntimeUnavailableError as `open_runtime`."""
    from controller.runtimes.cluster.runtime import ClusterRuntime

    state, files = settings.state.absolute(), None
    file = state / "hosts" / "replicas.json"
    if not settings.insecure_private_network and (settings.is_ray or settings.host_relay_port is not None):
        from controller.runtimes.cluster.material import HostCredentials

        files = HostCredentials.in_state(state)
    if settings.is_ray:
        from controller.runtimes.cluster.ray_carrier import open_ray_hosts

        kind = settings.runtime
        if kind == "auto":  # all hosts must be of one kind, and the head's own machine says which
            runtime = await open_runtime(settings.model_copy(update={"hosts": ()}), instance)
            kind = "docker" if runtime.kind == "docker" else "process"
            await runtime.close()
        return ClusterRuntime(open_ray_hosts(settings, instance), kind=kind, file=file, relay_files=files)
    from controller.runtimes.cluster.local_carrier import open_local_hosts

    carrier = open_local_hosts(settings, instance, *read_memory_limit(settings))
    return ClusterRuntime(carrier, kind="process", file=file, relay_files=files)
