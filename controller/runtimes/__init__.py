"""Runtimes: where replicas run, as containers or as processes. `open_runtime` chooses one by the settings."""

from __future__ import annotations

import logging

from controller.runtimes.base import Runtime, RuntimeUnavailableError
from controller.settings import ControllerSettings

log = logging.getLogger(__name__)


async def open_runtime(settings: ControllerSettings, instance: str) -> Runtime:
    """Open the runtime that the settings name. `auto` is docker if a Docker Engine answers, else process.

    Raises RuntimeUnavailableError if docker is named and no Docker Engine answers.
    """
    if settings.runtime != "process":
        # Imported only where it is used: the Docker client takes 60 ms and 20 MB.
        from controller.runtimes.docker.runtime import open_docker

        try:
            return await open_docker(
                instance=instance,
                models=settings.models.absolute(),
                state=settings.state.absolute(),
                images={**settings.images, "controller": settings.image_controller},
                engines_network=settings.engines_network,
                log_mib=settings.engine_log_mib,
            )
        except RuntimeUnavailableError as error:
            if settings.runtime == "docker":
                raise
            log.info("no Docker Engine answers (%s): engines run as processes", error)
    from controller.runtimes.process.runtime import ProcessRuntime

    return ProcessRuntime(
        instance, settings.state.absolute(), settings.models.absolute(), log_mib=settings.engine_log_mib
    )
