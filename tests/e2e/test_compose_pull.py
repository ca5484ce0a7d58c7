"""From an empty models folder to an answer in a compose project: one command in the controller's container."""

from __future__ import annotations

import shutil
from pathlib import Path

import aiohttp
import pytest

from tests.support.compose_project import ComposeProject, compose_project
from tests.support.fake_hub.repositories import HubRepository
from tests.support.fake_hub.server import FakeHub
from tests.support.roundhouse_stack import SENTENCE
from tests.support.wait import until

__all__ = ["compose_project"]

pytestmark = [pytest.mark.engines, pytest.mark.docker]

REPO = "clock/work-GGUF"
FILE = "work-Q4_K_M.gguf"


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
    question = {"model": "mine", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}
    address = f"http://127.0.0.1:{compose_project.port}/v1/chat/completions"
    async with aiohttp.ClientSession() as session, session.post(address, json=question) as answer:
        said = await answer.json()
    assert SENTENCE.startswith(said["choices"][0]["message"]["content"] or "nothing")
