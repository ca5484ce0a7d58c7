"""compose.yaml, brought up by the real docker-compose on locally built images."""

from __future__ import annotations

import json

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.support.admin import AdminApi
from tests.support.compose_project import ComposeProject, compose_project
from tests.support.docker_engine import SOCKET
from tests.support.roundhouse_stack import SENTENCE
from tests.support.socket_relay import SocketRelay
from tests.support.wait import until

__all__ = ["compose_project"]

pytestmark = [pytest.mark.engines, pytest.mark.docker]

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello"}]


async def test_compose_serves_survives_its_controller_and_leaves_nothing(compose_project: ComposeProject) -> None:
    compose_project.compose("up", "-d", "--no-build")
    await until("both replicas are ready", compose_project.loaded, 120)
    before = compose_project.engines()
    assert len(before) == 2
    async with AdminApi(f"http://127.0.0.1:{compose_project.port}") as admin:
        rows = (await admin.ask("GET", "models")).body["models"]
        assert [row["runtime_state"] for row in rows] == ["loaded"] * len(rows) != []
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{compose_project.port}/v1", api_key="none") as client:
        answer = await client.chat.completions.create(model="chat", messages=HELLO)
        assert answer.choices[0].message.content == SENTENCE
        compose_project.compose("kill", "-s", "SIGKILL", "controller")
        answer = await client.chat.completions.create(model="chat", messages=HELLO)
        assert answer.choices[0].message.content == SENTENCE
        compose_project.compose("up", "-d", "--no-build")
        await until("both replicas are ready", compose_project.loaded, 120)
        assert compose_project.engines() == before
        for container in compose_project.runtime_fixture.client.containers.list(filters={"name": compose_project.name}):
            published = [port for ports in container.ports.values() for port in ports or ()]
            assert bool(published) == ("gateway" in (container.name or ""))
    compose_project.down()
    assert compose_project.engines() == {}
    mine = f"com.docker.compose.project={compose_project.name}"
    assert compose_project.runtime_fixture.client.containers.list(all=True, filters={"label": mine}) == []
    assert compose_project.runtime_fixture.client.networks.list(names=[compose_project.runtime_fixture.network]) == []


async def test_the_core_needs_no_registry(compose_project: ComposeProject) -> None:
    """`compose_project` sets no profile: this is what a new user types."""
    (compose_project.folder / "desired-state" / "models.yaml").write_text("models: {}\n")
    override = compose_project.folder / "no-registry.json"
    away = {name: {"image": "127.0.0.1:1/nobody/none:1"} for name in ("qdrant", "prometheus", "grafana")}
    override.write_text(json.dumps({"version": "2.4", "services": away}))
    files = ("-f", "compose.yaml", "-f", str(override))
    compose_project.compose(*files, "up", "-d", "--no-build")
    core = {service: container.id for service, container in compose_project.services().items()}
    assert set(core) == {"controller", "gateway"}
    more = compose_project.run_compose(*files, "--profile", "full", "up", "-d", "--no-build")
    assert more.returncode != 0, "their registry cannot be reached"
    assert {service: container.id for service, container in compose_project.services().items()} == core


async def test_a_socket_that_docker_made_anew_is_found_again(compose_project: ComposeProject) -> None:
    path = compose_project.folder / "docker.sock"
    relay = SocketRelay(path, SOCKET)
    compose_project.settings |= {"ROUNDHOUSE_DOCKER_SOCKET": str(path), "ROUNDHOUSE_DOCKER_GONE_S": "3"}
    relay.listen()
    try:
        compose_project.compose("up", "-d", "--no-build")
        await until("both replicas are ready", compose_project.loaded, 120)
        before = compose_project.engines()
        relay.leave()
        relay.listen()
        (gone, *_) = before
        compose_project.runtime_fixture.client.containers.get(gone).kill()
        await until("the engine is started again", lambda: compose_project.engines().keys() - before.keys(), 120)
        await until("both replicas are ready", compose_project.loaded, 120)
        after = compose_project.engines()
        assert len(after) == 2
        assert len(after.keys() & before.keys()) == 1, "the other one was not restarted"
        controller = compose_project.services()["controller"]
        assert controller.attrs["RestartCount"] == 1
        assert "nobody listens at the Docker socket" in controller.logs().decode()
    finally:
        compose_project.compose("stop", check=False)
        relay.leave()
