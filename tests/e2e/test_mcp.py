"""An agent operates a real Roundhouse by MCP: a real controller, gateway and llama-server."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.mcp_clients import (
    ADMIN_TOOLS,
    GENERATIONS,
    INFERENCE_TOOLS,
    call,
    call_failing,
    list_names,
    mcp_client,
)
from tests.support.roundhouse_stack import SENTENCE, RoundhouseStack

pytestmark = pytest.mark.engines

SECRET = "hf_Wq81mTz0PlKx93Rr"
LLAMA: dict[str, Any] = {
    "model_path": "clockwork.gguf",
    "enabled": False,
    "llama_server_n_ctx": 1024,
    "llama_server_threads": 1,
}
BROKEN: dict[str, Any] = {
    "backend": "stub",
    "enabled": False,
    "stub_fail": f"cannot log in with {SECRET} to the hub",
    "env": {"HF_TOKEN": SECRET},
}


@pytest.mark.parametrize("runtime_fixture", ["process"], indirect=True)
async def test_an_agent_lists_loads_reads_and_unloads(stack: RoundhouseStack) -> None:
    stack.declare({"clock": LLAMA, "broken": BROKEN})
    await stack.open()
    for generation in GENERATIONS:
        async with mcp_client(stack.url, generation=generation) as client:
            assert await list_names(client) == INFERENCE_TOOLS + ADMIN_TOOLS
            assert await states(client) == {"broken": "unloaded", "clock": "unloaded"}

            loaded = await call(client, "load_model", model="clock", values={"llama_server_n_ctx": 512}, wait_s=60)
            assert (loaded["runtime_state"], loaded["loaded_replicas"]) == ("loaded", 1)
            assert await states(client) == {"broken": "unloaded", "clock": "loaded"}
            hello = await stack.chat("clock")
            assert hello.success["choices"][0]["message"]["content"] == SENTENCE
            row = await call(client, "get_model", model="clock")
            assert row["load_override"] == {"llama_server_n_ctx": 512}
            assert "llama_server_n_ctx" in row["load_constraints"]
            [replica] = row["replica_details"]
            log = await call(client, "get_logs", model="clock", replica=replica["name"], lines=1000)
            assert "llama_server: initializing" in log["log"]
            assert [each["name"] for each in (await call(client, "get_memory"))["models"]] == ["broken", "clock"]
            assert (await call(client, "get_plan"))["actions"] == []

            error = await call_failing(client, "load_model", model="broken", wait_s=60)
            assert error["code"] == "model_failed"
            assert "cannot log in with" in error["message"]
            assert SECRET not in str(error)
            assert (await call_failing(client, "get_logs", model="nobody"))["code"] == "unknown_model"
            refused = await call_failing(client, "load_model", model="clock", values={"x": 1})
            assert refused["code"] == "schema_violation"

            await call(client, "unload_model", model="broken", wait_s=60)
            assert (await call(client, "unload_model", model="clock", wait_s=60))["runtime_state"] == "unloaded"
            assert await states(client) == {"broken": "unloaded", "clock": "unloaded"}
            events = (await call(client, "list_events", model="clock", kinds=["statement"], limit=2))["events"]
            assert [each["details"]["action"] for each in events] == ["unload", "load"]
            assert {each["actor"] for each in events} == {"api 127.0.0.1 by mcp"}
            assert SECRET not in str(await call(client, "list_events", limit=200))
    log_of_gateway = stack.log("gateway")
    assert "Processing request" not in log_of_gateway, "the library is quiet"
    assert "Traceback" not in log_of_gateway


async def states(client: Any) -> dict[str, str]:
    return {each["name"]: each["state"] for each in (await call(client, "list_models"))["models"]}
