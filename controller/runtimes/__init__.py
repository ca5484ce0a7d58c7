"""Where replicas run: `base` declares the protocol `Runtime`, `docker` and `process` implement it. The only package
that starts, signals or stops engines. `nvml` reads the host's GPUs.
"""

from __future__ import annotations

import logging

from controller.runtimes.base import Runtime, RuntimeUnavailableError
from controller.settings import ControllerSettings

log = logging.getLogger(__name__)


async def open_runtime(settings: ControllerSettings, instance: str) -> Runtime:
    """Create the runtime that `settings.runtime` names: `docker`, `process`, or `auto`, which is docker if a Docker
    Engine answers, else process. The caller must close the runtime. `instance` is this installation's id. Raises
    RuntimeUnavailableError if docker is named and does not answer or cannot be used. With `auto`, the reason is only
    logged. Raises OSError if a folder of the process runtime cannot be made."""
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
