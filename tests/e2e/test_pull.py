"""From an empty models folder to an answer: by a file that names a source, and by one command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.status import ModelState, ModelStatus
from tests.support.fake_hub.repositories import HubRepository
from tests.support.fake_hub.server import FakeHub
from tests.support.ports import free_port
from tests.support.roundhouse_stack import SENTENCE, RoundhouseStack
from tests.support.runtime_fixtures import RuntimeFixture
from tests.support.wait import until

pytestmark = pytest.mark.engines

REPO = "clock/work-GGUF"
SOURCE = f"hf:{REPO}:Q4_K_M"
FILE = "work-Q4_K_M.gguf"
SERVER: dict[str, Any] = {"llama_server_n_ctx": 1024, "target_inflight": 1}


@pytest.fixture
def hub(clockwork: Path) -> Iterator[FakeHub]:
    with FakeHub([HubRepository(REPO, {FILE: clockwork, "README.md": b"hi"})]) as made:
        yield made


@pytest.fixture
async def empty_stack(runtime_fixture: RuntimeFixture, folder: Path, hub: FakeHub) -> AsyncIterator[RoundhouseStack]:
    """A Roundhouse with `transfers`, whose models folder is empty. It is not started yet."""
    created = RoundhouseStack(folder, runtime_fixture.runtime, runtime_fixture.env() | downloads(folder, hub.endpoint))
    try:
        yield created
    finally:
        await created.close()
    assert runtime_fixture.left(created) == [], "engines were left behind"


def downloads(folder: Path, endpoint: str) -> dict[str, str]:
    """Settings of a stack whose `transfers` asks a hub on this machine."""
    listen = f"unix:{folder}/t.sock"
    return {
        "ROUNDHOUSE_TRANSFERS_LISTEN": listen,
        "ROUNDHOUSE_TRANSFERS_URL": listen,
        "ROUNDHOUSE_HUB_ENDPOINT": endpoint,
        "ROUNDHOUSE_TRANSFERS_ALLOW_HOSTS": "127.0.0.1",
    }


async def chat(stack: RoundhouseStack, model: str) -> str | None:
    """The start of a model's answer; None: it does not answer with status 200."""
    reply = await stack.chat(model, max_tokens=8)
    return str(reply.body["choices"][0]["message"]["content"]) if reply.status == 200 else None


async def test_a_source_alone_brings_a_model_up_and_an_edit_of_it_rolls_over(
    empty_stack: RoundhouseStack, runtime_fixture: RuntimeFixture, hub: FakeHub, clockwork: Path
) -> None:
    stack = empty_stack
    stack.declare({"fetched": {**SERVER, "source": SOURCE}})
    stack.start("transfers")
    await stack.open()
    first = (await stack.loaded("fetched"))["fetched"].replicas[0]
    await until("it answers", lambda: chat(stack, "fetched"))
    assert SENTENCE.startswith(await chat(stack, "fetched") or "nothing")
    assert (stack.models / REPO / FILE).read_bytes() == clockwork.read_bytes()

    # What is here needs neither hub nor `transfers`.
    stack.kill("transfers")
    stack.kill("controller")
    stack.start("controller")
    again = (await stack.loaded("fetched"))["fetched"].replicas[0]
    assert runtime_fixture.identity(stack, again.name) == runtime_fixture.identity(stack, first.name)

    # A new revision is downloaded first, beside the old one, which serves meanwhile.
    [repository] = hub.repositories.values()
    commit = repository.commit({FILE: clockwork.read_bytes() + bytes(32)})
    stack.declare({"fetched": {**SERVER, "source": f"{SOURCE}@{commit}"}})

    def waits(model: ModelStatus) -> bool:
        return model.state is ModelState.LOADED and any("downloaded" in each for each in model.blocked)

    await stack.model_where("fetched", waits, "it waits for the new revision")
    assert await chat(stack, "fetched") is not None
    stack.start("transfers")

    def has_rolled(model: ModelStatus) -> bool:
        return [each.name for each in model.replicas if each.phase == "ready"] not in ([], [first.name])

    await stack.model_where("fetched", has_rolled, "another replica serves")
    assert (stack.models / f"{REPO}@{commit[:12]}" / FILE).exists()
    assert (stack.models / REPO / FILE).exists(), "what was downloaded goes by `roundhouse rm` alone"


async def test_pull_declares_and_it_answers(process_stack: RoundhouseStack, hub: FakeHub) -> None:
    stack = process_stack
    stack.settings |= downloads(stack.root, hub.endpoint)
    stack.declare({"talker": {"backend": "stub", "stub_text": "Hello."}})
    stack.start("transfers")
    await stack.open()
    done = await asyncio.to_thread(stack.run_command, "pull", f"{REPO}:Q4_K_M", "--as", "mine", "--declare")
    assert done.returncode == 0, done.stderr
    await stack.loaded("mine")
    await until("it answers", lambda: chat(stack, "mine"))
    assert SENTENCE.startswith(await chat(stack, "mine") or "nothing")
    exported = await asyncio.to_thread(stack.run_command, "declarations", "export")
    [repository] = hub.repositories.values()
    assert f"source: {SOURCE}@{repository.head}" in exported.stdout
    refused = await asyncio.to_thread(stack.run_command, "rm", f"{REPO}/{FILE}")
    assert refused.returncode != 0
    assert "mine" in refused.stderr
    dropped = await asyncio.to_thread(stack.run_command, "declarations", "rm", "mine")
    assert dropped.returncode == 0, dropped.stderr
    await stack.gone("mine")
    removed = await asyncio.to_thread(stack.run_command, "rm", f"{REPO}/{FILE}")
    assert removed.returncode == 0, removed.stderr
    assert not (stack.models / REPO).exists()


async def test_without_a_network_the_rest_is_served_and_it_is_said_what_cannot(
    process_stack: RoundhouseStack, clockwork: Path
) -> None:
    stack, port = process_stack, free_port()
    stack.settings |= downloads(stack.root, f"http://127.0.0.1:{port}")
    stack.declare({"talker": {"backend": "stub", "stub_text": "Hello."}, "fetched": {**SERVER, "source": SOURCE}})
    stack.start("transfers")
    await stack.open("talker")
    assert await chat(stack, "talker") == "Hello."

    def has_failed(model: ModelStatus) -> bool:
        return model.state is ModelState.FAILED and "cannot be downloaded" in (model.last_error or "")

    failed = await stack.model_where("fetched", has_failed, "it cannot be downloaded")
    assert failed.retry_at is not None
    with FakeHub([HubRepository(REPO, {FILE: clockwork})], port=port):
        await stack.loaded("fetched")
