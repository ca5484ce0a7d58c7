"""compose.yaml, brought up by the real docker-compose on locally built images."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Awaitable
from pathlib import Path

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.support.admin import AdminApi
from tests.support.broken_peers import SocketRelay
from tests.support.compose_project import ComposeProject, compose_project
from tests.support.docker_engine import SOCKET
from tests.support.fake_hub.repositories import HubRepository
from tests.support.fake_hub.server import FakeHub
from tests.support.http_client import answers, send_request
from tests.support.roundhouse_stack import SENTENCE
from tests.support.wait import until

__all__ = ["compose_project"]

pytestmark = [pytest.mark.engines, pytest.mark.docker]

ONE_STUB = "models:\n  chat:\n    backend: stub\n"
REPO = "clock/work-GGUF"
FILE = "work-Q4_K_M.gguf"
HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello"}]


def sdk(project: ComposeProject) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{project.port}/v1", api_key="none")


async def check_page(url: str) -> None:
    """The image holds the built page: a browser gets it with its scripts."""
    page = (await send_request(f"{url}/")).text
    scripts = re.findall(r'src="(page/assets/[^"]+\.js)"', page)
    assert scripts, page
    for path in scripts:
        reply = await send_request(f"{url}/{path}")
        assert (reply.status, reply.headers["content-type"].partition(";")[0]) == (200, "text/javascript")


async def check_documents(project: ComposeProject) -> None:
    """They outlive retrieval's container, and are found."""
    base = f"http://127.0.0.1:{project.port}/v1"
    document = {"text": "Coal is in the shed.", "id": "d"}

    def add_document() -> Awaitable[bool]:
        return answers(f"{base}/documents?wait=true", "POST", document)

    await until("retrieval takes documents", add_document, 120)
    project.compose("restart", "retrieval")
    await until("retrieval takes documents again", add_document, 120)
    [hit] = (await send_request(f"{base}/search", "POST", {"query": "coal"})).success["data"]
    assert (hit["document_id"], hit["text"]) == ("d", "Coal is in the shed.")


async def test_compose_serves_keeps_documents_survives_its_controller_and_leaves_nothing(
    compose_project: ComposeProject,
) -> None:
    compose_project.compose("up", "-d", "--no-build")
    await until("both replicas are ready", compose_project.loaded, 120)
    before = compose_project.engines()
    assert len(before) == 2
    async with AdminApi(f"http://127.0.0.1:{compose_project.port}") as admin:
        rows = (await admin.request("GET", "models")).body["models"]
        assert [row["runtime_state"] for row in rows] == ["loaded"] * len(rows) != []
    async with sdk(compose_project) as client:
        answer = await client.chat.completions.create(model="chat", messages=HELLO)
        assert answer.choices[0].message.content == SENTENCE
        await check_page(f"http://127.0.0.1:{compose_project.port}")
        await check_documents(compose_project)
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


async def test_a_backup_that_was_taken_while_it_runs_is_restored_into_empty_volumes(
    compose_project: ComposeProject,
) -> None:
    (compose_project.folder / "desired-state" / "models.yaml").write_text(ONE_STUB)
    (compose_project.folder / "backups").mkdir()
    compose_project.compose("up", "-d", "--no-build")
    await until("the model is ready", compose_project.loaded, 120)
    async with sdk(compose_project) as client:
        kept = await client.responses.create(model="chat", input="Hello")
    volumes = ("-v", f"{compose_project.name}_responses:/responses", "-v", f"{compose_project.folder}/backups:/backups")
    tool = ("run", "--rm", "--no-deps", *volumes, "--entrypoint", "roundhouse")
    archive = ("--responses", "/responses", "/backups/roundhouse.tar.gz")
    compose_project.compose(*tool, "controller", "backup", *archive)
    assert "nothing would change" in compose_project.compose(*tool, "controller", "upgrade", "--check")
    compose_project.remove()

    desired_state = compose_project.folder / "desired-state"
    (desired_state / "models.yaml").unlink()
    compose_project.compose("up", "--no-start", "--no-build")  # makes the volumes, with their owners
    restored = compose_project.restore_backup(desired_state, compose_project.folder / "backups", *archive)
    assert restored.returncode == 0, restored.stderr
    assert (desired_state / "models.yaml").read_text() == ONE_STUB
    compose_project.compose("up", "-d", "--no-build")
    await until("the model is ready again", compose_project.loaded, 120)
    async with sdk(compose_project) as client:
        assert (await client.responses.retrieve(kept.id)).output_text == kept.output_text != ""


async def test_the_core_needs_no_registry(compose_project: ComposeProject) -> None:
    """`compose_project` sets no profile: this is what a new user types."""
    (compose_project.folder / "desired-state" / "models.yaml").write_text("models: {}\n")
    override = compose_project.folder / "no-registry.json"
    away = {name: {"image": "127.0.0.1:1/nobody/none:1"} for name in ("qdrant", "prometheus", "grafana")}
    override.write_text(json.dumps({"version": "2.4", "services": away}))
    files = ("-f", "compose.yaml", "-f", str(override))
    compose_project.compose(*files, "up", "-d", "--no-build")
    core = {service: container.id for service, container in compose_project.services().items()}
    assert set(core) == {"controller", "gateway", "retrieval", "transfers"}
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


async def test_pull_fills_the_models_folder_with_its_owners_rights(
    compose_project: ComposeProject, clockwork: Path
) -> None:
    models = compose_project.folder / "models"
    (models / "clockwork.gguf").unlink()
    shutil.chown(models, 12345, 12345)
    (compose_project.folder / "desired-state" / "models.yaml").write_text("models: {}\n")
    config = compose_project.runtime_fixture.client.networks.get("bridge").attrs["IPAM"]["Config"][0]
    host = config.get("Gateway") or f"{config['Subnet'].rpartition('.')[0]}.1"
    with FakeHub([HubRepository(REPO, {FILE: clockwork})], host=host) as hub:
        compose_project.settings |= {
            "ROUNDHOUSE_HUB_ENDPOINT": hub.endpoint,
            "ROUNDHOUSE_TRANSFERS_ALLOW_HOSTS": host,
        }
        compose_project.compose("up", "-d", "--no-build")

        def is_healthy() -> bool:
            transfers = compose_project.services()["transfers"]
            return bool(transfers.attrs["State"].get("Health", {}).get("Status") == "healthy")

        await until("transfers is healthy", is_healthy, 120)
        command = ("pull", f"{REPO}:Q4_K_M", "--as", "mine", "--declare")
        done = compose_project.run_compose("exec", "-T", "controller", "roundhouse", *command)
        assert done.returncode == 0, done.stdout + done.stderr
    assert (models / REPO / FILE).read_bytes() == clockwork.read_bytes()
    placed = [models / REPO, models / REPO / FILE]
    assert {(each.stat().st_uid, each.stat().st_gid) for each in placed} == {(12345, 12345)}
    await until("the model is ready", compose_project.loaded, 120)
    async with sdk(compose_project) as client:
        answer = await client.chat.completions.create(model="mine", messages=HELLO, max_tokens=8)
    assert SENTENCE.startswith(answer.choices[0].message.content or "nothing")
