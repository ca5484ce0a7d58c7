"""Seed 001, "Runtime Admin API", walked section by section, through the gateway of a whole Roundhouse.

One Roundhouse serves all of these tests, in their order: the first two see it before anything was loaded.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.admin import AdminApi
from tests.support.roundhouse_stack import SENTENCE, RoundhouseStack
from tests.support.runtime_fixtures import ProcessRuntimeFixture, stack_of_processes
from tests.support.seed_examples import EXAMPLES, GGUF, MODELS, ROW_OF_THE_SEED, SCHEMA, VALUES
from tests.support.wait import until

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def walked(clockwork: Path) -> Iterator[RoundhouseStack]:
    """A Roundhouse on processes with a model of every backend, none of them loaded."""
    with stack_of_processes() as stack:
        shutil.copy(clockwork, stack.models / GGUF)
        stack.declare(MODELS)
        asyncio.run(stack.open())
        yield stack


@pytest.fixture
async def admin(walked: RoundhouseStack) -> AsyncIterator[AdminApi]:
    """Its admin API. What a test has loaded is unloaded after it."""
    async with AdminApi(walked.url) as api:
        yield api
        for row in (await api.request("GET", "models")).body["models"]:
            if row["runtime_state"] != "unloaded":
                assert (await api.unload(row["name"])).status == 200


async def test_the_list_is_the_uis_source_of_truth(admin: AdminApi, walked: RoundhouseStack) -> None:
    listed = await admin.request("GET", "models")
    assert listed.status == 200
    rows = {row["name"]: row for row in listed.body["models"]}
    assert rows.keys() == MODELS.keys()
    for row in rows.values():
        assert row.keys() >= ROW_OF_THE_SEED
        assert (row["runtime_state"], row["is_loaded"], row["loaded_replicas"]) == ("unloaded", False, 0)
        assert (row["configured_enabled"], row["load_override"], row["last_error"]) == (False, {}, None)
        assert (row["inflight_requests"], row["queue_depth"], row["runtime_inflight"]) == (0, 0, 0)
    row = rows["llama-cpp"]
    assert (row["replicas"], row["replica_max"], row["definition"]["replicas"]) == (3, 4, 3)
    assert (row["configured_target_inflight"], row["effective_target_inflight"]) == (1, 1)
    definition = row["definition"]
    assert definition["gguf_type_k"] is None
    assert (definition["prompt_format"], definition["gguf_flash_attn"]) == ("gemma4_template", "auto")
    assert not [field for field in definition if field.startswith(("vllm", "exllama", "llama_server"))]
    assert (
        rows["remote"]["load_constraints"] == rows["stub"]["load_constraints"] == rows["ct2"]["load_constraints"] == {}
    )
    assert rows["llama-cpp"]["load_constraints"].keys() == {
        "gguf_n_ctx",
        "gguf_flash_attn",
        "gguf_type_k",
        "gguf_type_v",
    }
    assert rows["llama-cpp"]["load_constraints"]["gguf_n_ctx"] == {"kind": "integer", "minimum": 1, "step": 1}
    assert rows["vllm"]["load_constraints"] == rows["vllm-serve"]["load_constraints"]
    assert rows["llama-server"]["vram_estimate_source"] == "predicted"
    assert rows["llama-server"]["vram_estimate_mib"] > (walked.models / GGUF).stat().st_size // 2**20, "not only a file"
    assert (rows["remote"]["vram_estimate_source"], rows["remote"]["vram_estimate_mib"]) == ("unavailable", None)
    assert rows["llama-cpp"]["capabilities"]["thinking_modes"] == ["default", "enabled", "disabled"]
    assert rows["llama-server"]["capabilities"] == {
        "modalities": ["text"],
        "media_urls": False,
        "multi_turn": True,
        "thinking_modes": ["default"],
        "tools": True,
        "forced_tools": True,
        "structured_output": True,
        "logprobs": True,
    }


async def test_a_wrong_body_is_refused_as_the_seed_says_and_changes_nothing(admin: AdminApi) -> None:
    for name, wrong, field in SCHEMA:
        answer = await admin.load(name, wrong)
        assert (answer.status, answer.code) == (422, "schema_violation"), (name, wrong, answer.body)
        assert answer.body["error"]["param"] == field, (wrong, answer.body)
    for name, wrong, field in VALUES:
        answer = await admin.load(name, wrong)
        assert (answer.status, answer.code) == (400, "invalid_load_request"), (name, wrong, answer.body)
        assert answer.body["error"]["param"] == field, answer.body
    assert (await admin.load("nobody")).code == "unknown_model"
    assert (await admin.load("nobody", {"gguf_n_ctx": 1})).status == 404
    for row in (await admin.request("GET", "models")).body["models"]:
        assert (row["runtime_state"], row["statement"]["kind"]) == ("unloaded", "file")


# Request behavior by runtime state


async def test_requests_are_refused_in_words_unless_the_model_is_loaded(admin: AdminApi) -> None:
    unloaded = await admin.chat("stub")
    assert (unloaded.status, unloaded.code, unloaded.headers["x-should-retry"]) == (503, "model_not_loaded", "false")
    unknown = await admin.chat("nobody")
    assert (unknown.status, unknown.code) == (404, "unknown_model")
    assert (await admin.load("slow", wait=False)).status == 202
    await admin.state("slow", "loading")
    loading = await admin.chat("slow")
    assert (loading.status, loading.code) == (503, "model_loading")
    assert int(loading.headers["retry-after"]) > 0
    assert (await admin.load("broken")).status == 503
    failed = await admin.chat("broken")
    assert (failed.status, failed.code) == (503, "model_failed")
    assert (await admin.load("stub")).status == 200
    assert (await admin.chat("stub")).status == 200
    thinking = await admin.chat("stub", thinking="enabled")
    assert (thinking.status, thinking.code) == (400, "thinking_unsupported")
    assert (await admin.chat("stub", thinking="default")).status == 200
    for refused in (unloaded, unknown, loading, failed, thinking):
        assert refused.body["error"]["next_steps"]


# Effective loaded values


async def test_a_present_key_rules_also_when_it_is_null_and_the_definition_stays(
    admin: AdminApi, walked: RoundhouseStack
) -> None:
    before = (walked.desired / "models.yaml").read_bytes()
    loaded = await admin.load("draft", {"llama_server_spec_type": None, "llama_server_n_ctx": 1024})
    assert loaded.status == 200, loaded.body
    row = loaded.body
    assert row["load_override"] == {"llama_server_spec_type": None, "llama_server_n_ctx": 1024}
    assert (row["definition"]["llama_server_spec_type"], row["definition"]["llama_server_n_ctx"]) == ("draft-mtp", 512)
    assert (await admin.chat("draft")).body["choices"][0]["message"]["content"].startswith(SENTENCE)
    assert (walked.desired / "models.yaml").read_bytes() == before
    assert (await admin.unload("draft")).body["load_override"] == {}


async def test_gpu_memory_is_what_there_is_or_why_there_is_none(admin: AdminApi) -> None:
    memory = (await admin.request("GET", "gpu-memory")).body
    added = {"driver_version", "cuda_version", "unread_gpus", "host_mib"}
    assert memory.keys() - added == {"gpus", "models", "error"}
    if memory["gpus"]:
        assert memory["error"] is None
    else:
        assert "NVIDIA" in memory["error"]
    model = next(each for each in memory["models"] if each["name"] == "llama-server")
    assert model.keys() - {"vram_observed_mib", "vram_warning"} == {
        "name", "runtime_state", "is_loaded", "configured_target_inflight", "effective_target_inflight",
        "vram_estimate_mib", "vram_estimate_replica_count", "vram_estimate_source",
    }  # fmt: skip
    assert (model["configured_target_inflight"], model["vram_estimate_replica_count"]) == (4, 1)


async def test_every_example_body_is_taken_and_kept_apart_from_the_definition(admin: AdminApi) -> None:
    """None of these engines can start here: the body is taken, the load fails for a reason of its own."""
    for name, body, override in EXAMPLES:
        definition = (await admin.row(name))["definition"]
        answer = await admin.load(name, body)
        assert (answer.status, answer.code) == (503, "model_failed"), (name, body, answer.body)
        row = await admin.row(name)
        assert (row["runtime_state"], row["load_override"]) == ("failed", override)
        assert row["last_error"]
        assert row["definition"] == definition
        assert row["replicas"] == body.get("replicas", definition["replicas"])


async def test_llama_servers_example_is_taken_and_reaches_the_engine(admin: AdminApi) -> None:
    body = {
        "llama_server_n_ctx": 4096,
        "llama_server_image_max_tokens": 512,
        "llama_server_spec_type": "draft-mtp",
        "llama_server_spec_draft_n_max": 4,
        "llama_server_spec_draft_p_min": 0.25,
    }
    answer = await admin.load("llama-server", body)
    # The demo model has no MTP layers, which only the engine can know: so it was asked for them.
    assert (answer.status, answer.code) == (503, "model_failed"), answer.body
    assert "failed to create MTP context" in answer.body["error"]["message"]
    row = await admin.row("llama-server")
    assert (row["runtime_state"], row["load_override"]) == ("failed", body)


async def test_a_load_goes_through_its_states_and_is_idempotent(admin: AdminApi) -> None:
    start = (await admin.request("GET", "models")).body["last_event_id"]
    first = await admin.load("stub", {"replicas": 3})
    assert first.status == 200
    row = first.body
    assert row.keys() >= ROW_OF_THE_SEED
    assert (row["runtime_state"], row["is_loaded"], row["replicas"], row["loaded_replicas"]) == ("loaded", True, 3, 3)
    assert (row["configured_enabled"], row["definition"]["replicas"], row["load_override"]) == (False, 1, {})
    assert await admin.transitions("stub", start) == ["loading", "loaded"]
    again = await admin.load("stub")
    assert (again.status, again.body["replicas"]) == (200, 3)
    for values in ({"replicas": 2}, {"replicas": 3}):
        refused = await admin.load("stub", values)
        assert (refused.status, refused.code) == (400, "invalid_load_request")
    # While it loads a plain load answers what there is; other values are refused.
    assert (await admin.load("slow", wait=False)).status == 202
    second = await admin.load("slow", wait=False)
    assert (second.status, second.body["runtime_state"]) == (200, "loading")
    assert (await admin.load("slow", {"replicas": 1}, wait=False)).code == "invalid_load_request"
    late = await admin.load("slow", timeout_s=0.1)
    assert (late.status, late.body["runtime_state"]) == (200, "loading")


async def test_a_failed_load_keeps_its_error_and_may_be_loaded_again(admin: AdminApi) -> None:
    start = (await admin.request("GET", "models")).body["last_event_id"]
    failed = await admin.load("broken")
    assert (failed.status, failed.code, failed.headers["x-should-retry"]) == (503, "model_failed", "false")
    assert "the seed wants a failure" in failed.body["error"]["message"]
    row = await admin.row("broken")
    assert "the seed wants a failure" in row["last_error"]
    assert (await admin.transitions("broken", start))[:2] == ["loading", "failed"]
    assert (await admin.load("broken", {"replicas": 1})).code == "model_failed"


async def test_an_unload_waits_for_running_requests_and_takes_no_new_ones(
    admin: AdminApi, walked: RoundhouseStack
) -> None:
    assert (await admin.unload("nobody")).status == 404
    idle = await admin.unload("stub")
    assert (idle.status, idle.body["runtime_state"]) == (200, "unloaded")
    loaded = await admin.load("stub", {"replicas": 2})
    assert loaded.status == 200
    engines = [each["name"] for each in loaded.body["replica_details"]]
    start = (await admin.request("GET", "models")).body["last_event_id"]
    async with admin.stream("stub", max_tokens=150) as running:
        await running.content.readline()
        async with ProcessRuntimeFixture().paused(walked, engines):
            unloading = await admin.unload("stub", wait=False)
            assert (unloading.status, unloading.body["runtime_state"]) == (202, "unloading")
            second = await admin.unload("stub", wait=False)
            assert (second.status, second.body["runtime_state"]) == (200, "unloading")
            refused = await admin.chat("stub")
            assert (refused.status, refused.code) == (503, "model_unloading")
            assert int(refused.headers["retry-after"]) > 0
            conflict = await admin.load("stub")
            assert (conflict.status, conflict.code) == (409, "state_conflict")
            held = await until("the row says who holds it", lambda: _held(admin))
            assert held == [running.headers["x-request-id"]]
            waiting = asyncio.create_task(admin.unload("stub"))
        text = (await running.read()).decode()
    assert text.rstrip().endswith("data: [DONE]")
    done = await waiting
    assert (done.status, done.body["runtime_state"], done.body["loaded_replicas"]) == (200, "unloaded", 0)
    assert done.body["replicas"] == done.body["definition"]["replicas"] == 1
    assert await admin.transitions("stub", start) == ["unloading", "unloaded"]
    assert (await admin.chat("stub")).code == "model_not_loaded"


async def _held(admin: AdminApi) -> list[str]:
    return [each["request_id"] for each in (await admin.row("stub"))["held_by"]]


async def test_an_unload_cancels_a_load(admin: AdminApi) -> None:
    loading = asyncio.create_task(admin.load("slow"))
    await admin.state("slow", "loading")
    cancelled = await admin.unload("slow")
    assert (cancelled.status, cancelled.body["runtime_state"]) == (200, "unloaded")
    given_up = await loading
    assert (given_up.status, given_up.code) == (409, "state_conflict")


# Documentation expectations


async def test_every_admin_endpoint_is_described(admin: AdminApi, walked: RoundhouseStack) -> None:
    async with admin.session.get(f"{walked.url}/openapi.json") as answer:
        document = await answer.json()
    operations = {
        f"{method} {path}": operation
        for path, methods in document["paths"].items()
        if path.startswith("/v1/admin")
        for method, operation in methods.items()
    }
    assert operations.keys() >= {
        "get /v1/admin/models",
        "get /v1/admin/gpu-memory",
        "post /v1/admin/models/{name}/load",
        "post /v1/admin/models/{name}/unload",
    }
    for name, operation in operations.items():
        assert len(operation["description"]) > 20, name
        for status, response in operation["responses"].items():
            assert response["description"], (name, status)
    load = operations["post /v1/admin/models/{name}/load"]
    assert {"200", "202", "400", "404", "409", "422", "503"} <= load["responses"].keys()
