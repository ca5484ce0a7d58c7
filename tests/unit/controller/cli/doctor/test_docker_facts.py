"""What `roundhouse doctor` asks a Docker daemon, from one that answers as Docker's API does."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import web

from controller.cli.doctor.docker_facts import read_docker
from controller.cli.doctor.facts import DockerFacts

NOW = datetime(2027, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()


async def ask(folder: Path, info: Mapping[str, object], *images: str, api: str = "1.51") -> DockerFacts:
    async def version(_: web.Request) -> web.Response:
        return web.json_response({"Version": "29.0.0", "ApiVersion": api, "MinAPIVersion": "1.24"})

    async def answer_info(_: web.Request) -> web.Response:
        return web.json_response({"ServerVersion": "29.0.0", **info})

    async def image(request: web.Request) -> web.Response:
        if request.match_info["name"] == "there:latest":
            return web.json_response({"Id": "sha256:1"})
        return web.json_response({"message": "no such image"}, status=404)

    app = web.Application()
    app.router.add_get("/version", version)
    app.router.add_get("/{v}/info", answer_info)
    app.router.add_get("/{v}/images/{name:.+}/json", image)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, str(folder / "docker.sock")).start()
    try:
        return await asyncio.to_thread(read_docker, "docker", images, url=f"unix://{folder}/docker.sock", now=NOW)
    finally:
        await runner.cleanup()


async def test_what_a_daemon_says(tmp_path: Path) -> None:
    info = {"Runtimes": {"runc": {}, "nvidia": {}}, "SystemTime": "2027-01-02T03:06:05.123456789Z"}
    facts = await ask(tmp_path, info, "there:latest", "roundhouse/worker:latest", "vllm/vllm-openai:v1")
    assert (facts.problem, facts.version, facts.has_gpu_support) == (None, "29.0.0", True)
    assert facts.daemon_ahead_s == 120
    assert facts.missing_images == (
        ("roundhouse/worker:latest", "`make images`"),
        ("vllm/vllm-openai:v1", "`docker pull vllm/vllm-openai:v1`; a start pulls it, too"),
    )


@pytest.mark.parametrize(
    ("system_time", "ahead_s"), [("2027-01-02T04:04:05.5+01:00", 0), ("2027-01-02T03:04:05Z", 0), ("", None)]
)
async def test_the_forms_of_a_time(tmp_path: Path, system_time: str, ahead_s: float | None) -> None:
    facts = await ask(tmp_path, {"SystemTime": system_time})
    assert facts.daemon_ahead_s == ahead_s


async def test_gpus_by_cdi_or_not_at_all(tmp_path: Path) -> None:
    devices = [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}]
    assert (await ask(tmp_path, {"DiscoveredDevices": devices})).has_gpu_support
    tmp_path.joinpath("docker.sock").unlink(missing_ok=True)
    assert not (await ask(tmp_path, {"Runtimes": {"runc": {}}})).has_gpu_support


async def test_a_daemon_that_is_too_old(tmp_path: Path) -> None:
    facts = await ask(tmp_path, {}, api="1.39")
    assert facts.problem is not None
    assert "too old" in facts.problem
    assert not facts.is_absent
