"""Routes of the admin API for hosts: the list, drains, and forgetting one that is gone for good."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body, FastAPI, Path

from contract.admin import ForgetRequest, HostDetails, HostList
from controller.admin.hosts import HostService
from controller.api.requests import Actor, error_responses

_TAGS: list[Any] = ["admin"]
HostName = Annotated[str, Path(description="Name of the host.", examples=["b"], min_length=1, max_length=400)]


def declare_hosts(app: FastAPI, service: HostService) -> None:
    """Add the routes `/v1/admin/hosts...` to `app`."""

    @app.get("/v1/admin/hosts", tags=_TAGS, summary="All hosts", responses=error_responses())
    async def list_hosts() -> HostList:
        """Every host with its state, its GPUs, its main memory and what runs there. An installation with one host
        has one entry, without a name."""
        return service.list_hosts()

    @app.post(
        "/v1/admin/hosts/{name}/drain",
        tags=_TAGS,
        summary="Drain a host",
        responses=error_responses("unknown_host", "last_host"),
    )
    async def drain_host(name: HostName, actor: Actor) -> HostDetails:
        """Start nothing more on the host, and move what runs there to other hosts, after their running requests. The
        answer comes at once; the host is empty when its `engines` are. It is kept over restarts."""
        return service.drain_host(name, actor=actor)

    @app.post(
        "/v1/admin/hosts/{name}/undrain",
        tags=_TAGS,
        summary="Use a host again",
        responses=error_responses("unknown_host"),
    )
    async def undrain_host(name: HostName, actor: Actor) -> HostDetails:
        """Take a drain back. What moved stays where it is."""
        return service.undrain_host(name, actor=actor)

    @app.post(
        "/v1/admin/hosts/{name}/forget",
        tags=_TAGS,
        summary="Forget a host",
        responses=error_responses("invalid_request", "unknown_host", "host_answers"),
    )
    async def forget_host(name: HostName, request: Annotated[ForgetRequest, Body()], actor: Actor) -> HostDetails:
        """Forget a host that is gone for good, so that it no longer counts among the silent ones. `confirm` is its name
        once more. What ran there counts as gone at once."""
        return await service.remove_host(name, request.confirm, actor=actor)
