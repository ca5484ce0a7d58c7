"""Programs of today start on state folders that earlier ones left, or say why they do not."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from common.program import EXIT_USAGE
from tests.support.goldens.product import RESPONSES_NAME
from tests.support.goldens.state_folders import FOLDERS, KEY, copy_of
from tests.support.goldens.write_state_folders import write
from tests.support.roundhouse_stack import RoundhouseStack
from tests.support.wait import until

DAYS = sorted(path.name for path in FOLDERS.iterdir())
REFUSED, *READ = DAYS
"""The day whose stored responses are refused, and those whose are read."""


@pytest.mark.parametrize("day", DAYS)
async def test_a_controller_goes_on_where_the_earlier_one_ended(day: str, folder: Path) -> None:
    then: dict[str, Any] = json.loads((FOLDERS / day / "expected.json").read_text())
    stack = RoundhouseStack(folder, "process")
    copy_of(FOLDERS / day / "controller", stack.state)
    # Files that are broken say nothing: what was last good rules.
    (stack.desired / "models.yaml").write_text("models: [\n")
    try:
        stack.start("controller")
        wanted = then["controller"]["wanted"]
        running = [name for name, each in wanted.items() if each["replicas"] and name not in ("broken", "llama")]
        loaded = await stack.loaded(*running)
        status = await stack.status()
        assert status.instance == then["controller"]["instance"]
        assert status.desired_problems
        assert {model.name: model.statement.kind for model in status.models} == {
            name: each["statement"] for name, each in wanted.items()
        }
        assert {name: len(model.replicas) for name, model in loaded.items()} == {
            name: wanted[name]["replicas"] for name in running
        }
        assert {each.spec_hash for model in loaded.values() for each in model.replicas} == {
            wanted[name]["spec_hash"] for name in running
        }
        await _journal_goes_on(stack, then["controller"]["journal"])
        assert json.loads((stack.state / "epoch.json").read_text())["epoch"] == then["controller"]["next_epoch"]
    finally:
        await stack.close()


async def _journal_goes_on(stack: RoundhouseStack, before: list[dict[str, Any]]) -> None:
    answer = await stack.get("/v1/admin/history?limit=500&kind=statement&kind=controller&kind=file")
    entries = {entry["id"]: entry["message"] for entry in answer["entries"]}
    told = {each["id"]: each["message"] for each in before if each["kind"] in ("statement", "controller", "file")}
    assert told
    assert told.items() <= entries.items()
    assert max(entries) > max(told)


@pytest.mark.parametrize("day", READ)
async def test_a_gateway_answers_with_the_responses_of_an_earlier_one(day: str, folder: Path) -> None:
    then: dict[str, Any] = json.loads((FOLDERS / day / "expected.json").read_text())
    # A hundred years: the fixtures grow older.
    stack = RoundhouseStack(folder, "process", {"ROUNDHOUSE_RESPONSES_RETENTION_H": "876000"})
    copy_of(FOLDERS / day / "controller", stack.state)
    copy_of(FOLDERS / day / "gateway", stack.state)
    (stack.desired / "models.yaml").write_text("models: [\n")
    try:
        stack.start("controller")
        stack.start("gateway")
        async with aiohttp.ClientSession(headers={"authorization": f"Bearer {KEY}"}) as session:

            async def ready() -> bool:
                try:
                    async with session.get(f"{stack.url}/v1/models") as answer:
                        return answer.status == 200
                except aiohttp.ClientError:
                    return False

            await until("the gateway has a table", ready)
            for response_id, (_, stored) in then["gateway"]["responses"].items():
                async with session.get(f"{stack.url}/v1/responses/{response_id}") as answer:
                    assert (answer.status, await answer.json()) == (200, stored)
            body = {"model": "served", "input": "four", "previous_response_id": then["gateway"]["order"][-1]}
            await stack.loaded("served")
            async with session.post(f"{stack.url}/v1/responses", json=body) as answer:
                assert answer.status == 200, await answer.text()
    finally:
        await stack.close()


async def test_a_gateway_refuses_the_responses_of_before_the_first_release(folder: Path) -> None:
    stack = RoundhouseStack(folder, "process")
    responses = copy_of(FOLDERS / REFUSED / "gateway", stack.state) / RESPONSES_NAME
    before = responses.read_bytes()
    assert await asyncio.to_thread(stack.start("gateway").wait, 60) == EXIT_USAGE
    assert stack.log("gateway") == (
        f"roundhouse gateway: cannot keep responses in {responses}: a Roundhouse of before 0.1.0 wrote it "
        "(schema version 1, this one reads 4): run that one, or move the file away. "
        "Set ROUNDHOUSE_STATE, or ROUNDHOUSE_RESPONSES_RETENTION_H=0\n"
    )
    assert responses.read_bytes() == before


async def test_folders_can_be_kept_of_this_day_too(tmp_path: Path) -> None:
    await write(tmp_path)
    made, kept = (json.loads((path / "expected.json").read_text()) for path in (tmp_path, FOLDERS / DAYS[-1]))
    # Times, ids and the like are others; what there is to be kept is the same, or a newer folder is due.
    assert made["controller"]["wanted"] == kept["controller"]["wanted"]
    assert made["controller"]["definitions"] == kept["controller"]["definitions"]
    assert made["controller"]["memory"].keys() == kept["controller"]["memory"].keys()
    # The broken model's next attempt may have been under way, or not, in each of them.
    made_models, kept_models = (
        {each["model"] for each in read["controller"]["replicas"]} - {"broken"} for read in (made, kept)
    )
    assert made_models == kept_models
    fields = {key for each in kept["controller"]["replicas"] for key in each}
    assert all(each.keys() == fields for each in made["controller"]["replicas"])
    assert len(made["gateway"]["history"]) == len(kept["gateway"]["history"])
