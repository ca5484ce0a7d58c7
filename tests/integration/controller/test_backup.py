"""A backup taken from a Roundhouse at work, restored into empty folders: what was declared, said and stored is back."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from contract.status import ControllerStatus
from tests.support.cli import PROGRAM
from tests.support.roundhouse_stack import RoundhouseStack
from tests.support.wait import until

pytestmark = pytest.mark.slow

KEY = "rh-a-key-of-tests-that-everybody-knows"
CLIENTS = 4
DECLARED = {
    "served": {"backend": "stub", "stub_text": "I am served."},
    "by-hand": {"backend": "stub", "enabled": False, "replica_max": 3},
    "put-away": {"backend": "stub"},
}


async def run_command(stack: RoundhouseStack, *arguments: str) -> tuple[int, str]:
    """Run `roundhouse` with a stack's settings; its exit code, and what it said."""
    process = await asyncio.create_subprocess_exec(
        PROGRAM,
        *arguments,
        env=stack.environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


class Clients:
    """Clients that ask for responses, one after another, and keep what they got."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.answers: dict[str, Any] = {}
        self._url = url
        self._session = session
        self._is_over = False

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """They ask until the end, and each answer must be good."""
        tasks = [asyncio.create_task(self._ask()) for _ in range(CLIENTS)]
        try:
            yield
        finally:
            self._is_over = True
        await asyncio.gather(*tasks)

    async def _ask(self) -> None:
        previous: str | None = None
        while not self._is_over:
            body = {"model": "served", "input": "x" * 2000, "previous_response_id": previous}
            async with self._session.post(f"{self._url}/v1/responses", json=body) as answer:
                made = await answer.json()
                assert answer.status == 200, made
            self.answers[made["id"]] = made
            previous = made["id"] if len(self.answers) % 5 else None


async def prepare(stack: RoundhouseStack, session: aiohttp.ClientSession) -> None:
    """Declarations, a key, a load and an unload by an operator."""
    stack.declare(DECLARED)
    key = {"sha256": hashlib.sha256(KEY.encode()).hexdigest(), "scopes": ["inference", "admin"]}
    (stack.desired / "keys.json").write_text(json.dumps({"keys": {"ours": key}}))
    stack.start("controller")
    stack.start("gateway")
    await is_served(stack, session)
    await stack.loaded("served", "put-away")
    for name, action, body in (("by-hand", "load", {"replicas": 2}), ("put-away", "unload", {"hold": True})):
        async with session.post(f"{stack.url}/v1/admin/models/{name}/{action}", json=body) as answer:
            assert answer.status == 200, await answer.text()


async def is_served(stack: RoundhouseStack, session: aiohttp.ClientSession) -> None:
    """Wait for a gateway that knows the key."""

    async def answers() -> bool:
        with contextlib.suppress(aiohttp.ClientError):
            async with session.get(f"{stack.url}/v1/models") as answer:
                return answer.status == 200
        return False

    await until("the gateway knows the key", answers)


def statements(status: ControllerStatus) -> dict[str, tuple[str, float, int]]:
    """By model what rules it: which statement, since when, and how many replicas it wants."""
    return {model.name: (model.statement.kind, model.statement.since, model.wanted_replicas) for model in status.models}


async def history(stack: RoundhouseStack) -> dict[int, Any]:
    """Entries of the history by their id."""
    answer = await stack.get("/v1/admin/history?limit=500")
    return {entry["id"]: entry for entry in answer["entries"]}


async def test_what_a_roundhouse_at_work_knows_is_restored_elsewhere(folder: Path) -> None:
    origin, other = RoundhouseStack(folder / "a", "process"), RoundhouseStack(folder / "b", "process")
    file = folder / "backup.tar.gz"
    async with aiohttp.ClientSession(headers={"authorization": f"Bearer {KEY}"}) as session:
        try:
            await prepare(origin, session)
            clients = Clients(origin.url, session)
            async with clients.at_work():
                await until("some responses are stored", lambda: len(clients.answers) > 2 * CLIENTS)
                answers_before, history_before = dict(clients.answers), await history(origin)
                code, said = await run_command(origin, "backup", str(file))
                assert code == 0, said
                code, said = await run_command(origin, "restore", str(file), "--force")
                assert (code, "`roundhouse down` ends it" in said) == (4, True)
            statements_before = statements(await origin.status())
            instance = (await origin.status()).instance
        finally:
            await origin.close()

        code, said = await run_command(other, "restore", str(file))
        assert code == 0, said
        try:
            assert {path.name: path.read_bytes() for path in other.desired.iterdir()} == {
                path.name: path.read_bytes() for path in origin.desired.iterdir()
            }
            other.start("controller")
            other.start("gateway")
            await is_served(other, session)
            await other.loaded("served", "by-hand")
            status = await other.status()
            # "since" of what the files say is when this controller first read them.
            assert {name: each if each[0] != "file" else each[0] for name, each in statements(status).items()} == {
                name: each if each[0] != "file" else each[0] for name, each in statements_before.items()
            }
            assert (status.instance, status.desired_problems) == (instance, [])
            assert history_before.items() <= (await history(other)).items()
            for response_id, made in answers_before.items():
                async with session.get(f"{other.url}/v1/responses/{response_id}") as answer:
                    assert (answer.status, await answer.json()) == (200, made)
            body = {"model": "served", "input": "go on", "previous_response_id": next(iter(answers_before))}
            async with session.post(f"{other.url}/v1/responses", json=body) as answer:
                assert answer.status == 200, await answer.text()
            other.kill("gateway", signal.SIGTERM)
        finally:
            await other.close()
