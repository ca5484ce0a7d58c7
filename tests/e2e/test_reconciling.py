"""What must show of the controller, on real engines, as processes and as containers."""

from __future__ import annotations

import json
import shutil
import signal

import pytest

from controller.schema.status import ModelState
from tests.support.house import House, replica_names
from tests.support.load import Load
from tests.support.sites import Site
from tests.support.wait import until

LLAMA = {
    "backend": "llama_server",
    "model_path": "clockwork.gguf",
    "llama_server_n_ctx": 4096,
    "llama_server_threads": 1,
}
TWO_MODELS = {"one": LLAMA, "two": LLAMA | {"replicas": 2}}
LONG = {"max_tokens": 400, "ignore_eos": True}
"""Keeps an engine generating for a while; the answer begins with the known text."""


async def _identities(house: House, site: Site, *names: str) -> dict[str, str]:
    models = await house.loaded(*names)
    return {replica: site.identity(house, replica) for model in models.values() for replica in replica_names(model)}


async def test_an_engine_that_is_killed_under_load_is_replaced_and_nobody_else_notices(
    house: House, site: Site
) -> None:
    house.declare(TWO_MODELS)
    await house.open()
    before = await _identities(house, site, "one", "two")
    killed = min(replica_names((await house.loaded("two"))["two"]))
    one, two = Load("one"), Load("two")
    async with one.running(house.url), two.running(house.url, **LONG):
        await two.more(20)
        await one.more(20)
        site.kill(house, killed)
        await house.model_where("two", lambda model: killed not in replica_names(model), "the killed one is gone")
        after = await _identities(house, site, "one", "two")
        await two.more(20)
        await one.more(20)
    assert one.lost == two.lost == []
    assert not one.refused
    assert set(two.refused) <= {"engine_disconnected", "engine_unreachable"}
    assert killed not in after
    assert len(after) == 3
    assert {name: identity for name, identity in before.items() if name != killed}.items() <= after.items()


async def test_a_controller_that_is_killed_under_load_loses_nothing_and_adopts_everything(
    house: House, site: Site
) -> None:
    house.declare(TWO_MODELS)
    await house.open()
    before = await _identities(house, site, "one", "two")
    one, two = Load("one"), Load("two")
    async with one.running(house.url, **LONG), two.running(house.url):
        await one.more(10)
        house.kill("controller", signal.SIGKILL)
        await one.more(20)
        await two.more(20)
        house.start("controller")
        after = await _identities(house, site, "one", "two")
        await until("the gateway is back", lambda: "is connected" in house.log("controller").split("listening on")[-1])
        await one.more(20)
        await two.more(20)
    assert (one.lost, one.refused, two.lost, two.refused) == ([], {}, [], {})
    assert after == before


async def test_an_edit_of_one_model_changes_only_its_engines_and_fails_no_request(house: House, site: Site) -> None:
    house.declare(TWO_MODELS)
    await house.open()
    before = await _identities(house, site, "one", "two")
    one, two = Load("one"), Load("two")
    async with one.running(house.url), two.running(house.url, **LONG):
        await two.more(10)
        house.declare(TWO_MODELS | {"two": TWO_MODELS["two"] | {"llama_server_n_ctx": 2048}})
        await house.model_where(
            "two", lambda model: any(not replica.outdated for replica in model.replicas) and len(model.replicas) > 2,
            "new ones beside old ones",
        )  # fmt: skip
        after = await _identities(house, site, "one", "two")
        await two.more(10)
        await one.more(10)
    assert (one.lost, one.refused, two.lost, two.refused) == ([], {}, [], {})
    assert len(after) == 3
    kept = before.items() & after.items()
    assert {name for name, _ in kept} == replica_names((await house.loaded("one"))["one"])


async def test_an_edit_that_touches_no_engine_restarts_none(house: House, site: Site) -> None:
    house.declare(TWO_MODELS)
    await house.open()
    before = await _identities(house, site, "one", "two")
    house.declare(TWO_MODELS | {"two": TWO_MODELS["two"] | {"aliases": ["deux"], "drain_timeout_s": 5.0}})
    await house.model_where("two", lambda model: model.aliases == ["deux"], "has its alias")
    assert await _identities(house, site, "one", "two") == before


async def test_a_broken_file_changes_nothing_and_says_where(house: House, site: Site) -> None:
    house.declare({"one": LLAMA})
    await house.open()
    before = await _identities(house, site, "one")
    (house.desired / "models.yaml").write_text("models:\n  one:\n    model_path: clockwork.gguf\n    replica: 2\n")
    await until("the problem is seen", lambda: _problems(house))
    [problem] = (await house.status()).desired_problems
    assert problem.file.endswith("models.yaml")
    assert (problem.line, problem.field) == (4, "models.one.replica")
    assert "replicas" in problem.message
    house.kill("controller")
    house.start("controller")
    assert await _identities(house, site, "one") == before
    assert (await house.status()).desired_problems == [problem]
    assert (await house.plan()).actions == []


async def _problems(house: House) -> bool:
    return bool((await house.status()).desired_problems)


async def test_a_removed_model_is_drained_and_its_name_is_free_again(house: House, site: Site) -> None:
    house.declare(TWO_MODELS)
    await house.open()
    await house.loaded("two")
    before = await _identities(house, site, "one")
    two = Load("two")
    async with two.running(house.url, workers=8, **LONG):
        await two.more(10)
        house.declare({"one": LLAMA})
        await house.gone("two")
    assert two.lost == []
    assert set(two.refused) <= {"unknown_model", "model_unloading"}
    assert await _identities(house, site, "one") == before
    assert set(site.left(house)) == set(before)
    house.declare(TWO_MODELS)
    assert len(await _identities(house, site, "one", "two")) == 3


async def test_paused_it_observes_and_never_acts(house: House, site: Site) -> None:
    house.declare({"one": LLAMA})
    await house.open()
    [replica] = await _identities(house, site, "one")
    await house.post("/internal/pause", {"paused": True})
    site.kill(house, replica)
    await house.model_where("one", lambda model: model.loaded_replicas == 0, "nothing serves")
    house.kill("controller")
    house.start("controller")
    plan = await until("the plan is known", lambda: _plan_kinds(house))
    assert plan == ["remove"]
    assert (await house.status()).paused
    await house.post("/internal/pause", {"paused": False})
    assert replica not in await _identities(house, site, "one")


async def _plan_kinds(house: House) -> list[str]:
    try:
        return [action.kind for action in (await house.plan()).actions]
    except (OSError, ValueError):
        return []


@pytest.mark.parametrize(
    ("definition", "words"),
    [
        (LLAMA | {"model_path": "clockwrk.gguf"}, ("model_path", "clockwork.gguf")),
        (LLAMA | {"model_path": "text.gguf"}, ("not a GGUF",)),
        (LLAMA | {"extra_args": ["--no-such-flag"]}, ("argument", "--no-such-flag")),
        ({"backend": "stub", "stub_fail": "CUDA out of tune"}, ("CUDA out of tune",)),
        ({"backend": "stub", "stub_load_s": 60.0, "start_timeout_s": 1.5}, ("not ready within 1.5 s",)),
    ],
)
async def test_a_load_that_fails_says_why_and_delays_nobody(
    house: House, site: Site, definition: dict[str, object], words: tuple[str, ...]
) -> None:
    (house.models / "text.gguf").write_text("this is not a model")
    house.declare({"bad": definition, "good": LLAMA})
    await house.open()
    await house.loaded("good")
    bad = await house.model_where("bad", lambda model: model.state is ModelState.FAILED, "failed")
    assert bad.last_error is not None
    for word in words:
        assert word in bad.last_error, bad.last_error


async def test_a_file_that_arrives_late_heals_the_model(house: House, site: Site) -> None:
    house.declare({"late": LLAMA | {"model_path": "late.gguf"}})
    await house.open()
    failed = await house.model_where("late", lambda model: model.state is ModelState.FAILED, "failed")
    assert failed.retry_at is not None
    shutil.copy(house.models / "clockwork.gguf", house.models / "late.gguf")
    await house.loaded("late")


async def test_state_files_carry_a_schema_version(house: House, site: Site) -> None:
    house.declare({"one": {"backend": "stub"}})
    await house.open()
    await house.loaded("one")
    for path in house.state.rglob("*.json"):
        assert json.loads(path.read_text())["schema_version"] == 1, path
