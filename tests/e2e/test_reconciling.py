"""What must show of the controller, on real engines, as processes and as containers."""

from __future__ import annotations

import json
import shutil
import signal

import pytest

from contract.status import ModelState
from tests.support.load import Load
from tests.support.roundhouse_stack import RoundhouseStack, replica_names
from tests.support.runtime_fixtures import RuntimeFixture
from tests.support.wait import until

pytestmark = pytest.mark.engines

LLAMA = {
    "backend": "llama_server",
    "model_path": "clockwork.gguf",
    "llama_server_n_ctx": 4096,
    "llama_server_threads": 1,
}
TWO_MODELS = {"one": LLAMA, "two": LLAMA | {"replicas": 2}}
LONG = {"max_tokens": 400, "ignore_eos": True}
"""Keeps an engine generating for a while; the answer begins with the known text."""


async def _identities(stack: RoundhouseStack, runtime_fixture: RuntimeFixture, *names: str) -> dict[str, str]:
    models = await stack.loaded(*names)
    return {
        replica: runtime_fixture.identity(stack, replica)
        for model in models.values()
        for replica in replica_names(model)
    }


async def test_an_engine_that_is_killed_under_load_is_replaced_and_nobody_else_notices(
    stack: RoundhouseStack, runtime_fixture: RuntimeFixture
) -> None:
    stack.declare(TWO_MODELS)
    await stack.open()
    before = await _identities(stack, runtime_fixture, "one", "two")
    killed = min(replica_names((await stack.loaded("two"))["two"]))
    one, two = Load("one"), Load("two")
    async with one.running(stack.url), two.running(stack.url, **LONG):
        await two.more(20)
        await one.more(20)
        runtime_fixture.kill(stack, killed)
        await stack.model_where("two", lambda model: killed not in replica_names(model), "the killed one is gone")
        after = await _identities(stack, runtime_fixture, "one", "two")
        await two.more(20)
        await one.more(20)
    assert one.lost == two.lost == []
    assert not one.refused
    assert set(two.refused) <= {"engine_disconnected", "engine_unreachable"}
    assert killed not in after
    assert len(after) == 3
    assert {name: identity for name, identity in before.items() if name != killed}.items() <= after.items()


async def test_a_controller_that_is_killed_under_load_loses_nothing_and_adopts_everything(
    stack: RoundhouseStack, runtime_fixture: RuntimeFixture
) -> None:
    stack.declare(TWO_MODELS)
    await stack.open()
    before = await _identities(stack, runtime_fixture, "one", "two")
    one, two = Load("one"), Load("two")
    async with one.running(stack.url, **LONG), two.running(stack.url):
        await one.more(10)
        stack.kill("controller", signal.SIGKILL)
        await one.more(20)
        await two.more(20)
        stack.start("controller")
        after = await _identities(stack, runtime_fixture, "one", "two")
        await until("the gateway is back", lambda: "is connected" in stack.log("controller").split("listening on")[-1])
        await one.more(20)
        await two.more(20)
    assert (one.lost, one.refused, two.lost, two.refused) == ([], {}, [], {})
    assert after == before


async def test_an_edit_of_one_model_changes_only_its_engines_and_fails_no_request(
    stack: RoundhouseStack, runtime_fixture: RuntimeFixture
) -> None:
    stack.declare(TWO_MODELS)
    await stack.open()
    before = await _identities(stack, runtime_fixture, "one", "two")
    renamed = TWO_MODELS["two"] | {"aliases": ["deux"], "drain_timeout_s": 5.0}
    stack.declare(TWO_MODELS | {"two": renamed})
    await stack.model_where("two", lambda model: model.aliases == ["deux"], "has its alias")
    assert await _identities(stack, runtime_fixture, "one", "two") == before, "that touches no engine"
    one, two = Load("one"), Load("two")
    async with one.running(stack.url), two.running(stack.url, **LONG):
        await two.more(10)
        stack.declare(TWO_MODELS | {"two": TWO_MODELS["two"] | {"llama_server_n_ctx": 2048}})
        await stack.model_where(
            "two", lambda model: any(not replica.outdated for replica in model.replicas) and len(model.replicas) > 2,
            "new ones beside old ones",
        )  # fmt: skip
        after = await _identities(stack, runtime_fixture, "one", "two")
        await two.more(10)
        await one.more(10)
    assert (one.lost, one.refused, two.lost, two.refused) == ([], {}, [], {})
    assert len(after) == 3
    kept = before.items() & after.items()
    assert {name for name, _ in kept} == replica_names((await stack.loaded("one"))["one"])


async def test_a_broken_file_changes_nothing_and_says_where(
    stack: RoundhouseStack, runtime_fixture: RuntimeFixture
) -> None:
    stack.declare({"one": LLAMA})
    await stack.open()
    before = await _identities(stack, runtime_fixture, "one")
    (stack.desired / "models.yaml").write_text("models:\n  one:\n    model_path: clockwork.gguf\n    replica: 2\n")
    await until("the problem is seen", lambda: _problems(stack))
    [problem] = (await stack.status()).desired_problems
    assert problem.file.endswith("models.yaml")
    assert (problem.line, problem.field) == (4, "models.one.replica")
    assert "replicas" in problem.message
    stack.kill("controller")
    stack.start("controller")
    assert await _identities(stack, runtime_fixture, "one") == before
    assert (await stack.status()).desired_problems == [problem]
    assert (await stack.plan()).actions == []


async def _problems(stack: RoundhouseStack) -> bool:
    return bool((await stack.status()).desired_problems)


async def test_a_removed_model_is_drained_and_its_name_is_free_again(
    stack: RoundhouseStack, runtime_fixture: RuntimeFixture
) -> None:
    stack.declare(TWO_MODELS)
    await stack.open("two")
    before = await _identities(stack, runtime_fixture, "one")
    two = Load("two")
    async with two.running(stack.url, workers=8, **LONG):
        await two.more(10)
        stack.declare({"one": LLAMA})
        await stack.gone("two")
    assert two.lost == []
    assert set(two.refused) <= {"unknown_model", "model_unloading"}
    assert await _identities(stack, runtime_fixture, "one") == before
    assert set(runtime_fixture.left(stack)) == set(before)
    stack.declare(TWO_MODELS)
    assert len(await _identities(stack, runtime_fixture, "one", "two")) == 3


async def test_paused_it_observes_and_never_acts(stack: RoundhouseStack, runtime_fixture: RuntimeFixture) -> None:
    stack.declare({"one": LLAMA})
    await stack.open()
    [replica] = await _identities(stack, runtime_fixture, "one")
    await stack.post("/internal/pause", {"paused": True})
    runtime_fixture.kill(stack, replica)
    await stack.model_where("one", lambda model: model.loaded_replicas == 0, "nothing serves")
    stack.kill("controller")
    stack.start("controller")
    plan = await until("the plan is known", lambda: _plan_kinds(stack))
    assert plan == ["remove"]
    assert (await stack.status()).paused
    await stack.post("/internal/pause", {"paused": False})
    assert replica not in await _identities(stack, runtime_fixture, "one")


async def _plan_kinds(stack: RoundhouseStack) -> list[str]:
    try:
        return [action.kind for action in (await stack.plan()).actions]
    except (OSError, ValueError):
        return []


FAILING: dict[str, tuple[dict[str, object], tuple[str, ...]]] = {
    "misspelt": (LLAMA | {"model_path": "clockwrk.gguf"}, ("model_path", "clockwork.gguf")),
    "text": (LLAMA | {"model_path": "text.gguf"}, ("not a GGUF",)),
    "flag": (LLAMA | {"extra_args": ["--no-such-flag"]}, ("argument", "--no-such-flag")),
    "broken": ({"backend": "stub", "stub_fail": "CUDA out of tune"}, ("CUDA out of tune",)),
    "slow": ({"backend": "stub", "stub_load_s": 60.0, "start_timeout_s": 1.5}, ("not ready within 1.5 s",)),
}


async def test_loads_that_fail_say_why_and_delay_nobody_and_files_that_arrive_late_heal_their_models_at_once(
    stack: RoundhouseStack, runtime_fixture: RuntimeFixture
) -> None:
    # Only the file itself can end the wait: the next check is an hour away, and what an engine refuses has none.
    stack.settings["ROUNDHOUSE_PREFLIGHT_RECHECK_S"] = "3600"
    (stack.models / "text.gguf").write_text("this is not a model")
    whole = (stack.models / "clockwork.gguf").read_bytes()
    (stack.models / "half.gguf").write_bytes(whole[: len(whole) // 2])
    bad = {name: definition for name, (definition, _) in FAILING.items()}
    late_models = {name: LLAMA | {"model_path": f"{name}.gguf"} for name in ("late", "half")}
    stack.declare(bad | {"good": LLAMA} | late_models)
    await stack.open("good")
    for name, (_, words) in FAILING.items():
        failed = await stack.model_where(name, lambda model: model.state is ModelState.FAILED, "failed")
        for word in words:
            assert word in (failed.last_error or ""), (name, failed.last_error)
    late = await stack.model_where("late", lambda model: model.state is ModelState.FAILED, "failed")
    assert late.retry_at is not None
    await stack.model_where("half", lambda model: model.state is ModelState.FAILED, "failed")
    for name in late_models:
        shutil.copy(stack.models / "clockwork.gguf", stack.models / f"{name}.gguf")
        await stack.loaded(name)


async def test_state_files_carry_a_schema_version(stack: RoundhouseStack, runtime_fixture: RuntimeFixture) -> None:
    stack.declare({"one": {"backend": "stub"}})
    await stack.open("one")
    files = [*stack.state.rglob("*.json")]
    assert files
    for path in files:
        assert json.loads(path.read_text())["schema_version"] == 1, path
