"""A model that is declared at run time, from the first answer to the commit that ends the declaration."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.admin import AdminApi
from tests.support.roundhouse_stack import RoundhouseStack
from tests.support.runtime_fixtures import ProcessRuntimeFixture
from tests.support.wait import until

pytestmark = pytest.mark.engines

STUB: dict[str, Any] = {"backend": "stub", "stub_text": "one two three"}


async def test_from_the_first_answer_to_the_commit(process_stack: RoundhouseStack) -> None:
    stack, runtime = process_stack, ProcessRuntimeFixture()
    stack.declare({"in-file": STUB | {"enabled": False}})
    await stack.open()
    async with AdminApi(stack.url) as admin:
        made = await admin.request("PUT", "declarations/models/by/hand", STUB)
        assert (made.status, made.body["kind"], made.body["name"]) == (201, "models", "by/hand")
        model = (await stack.loaded("by/hand"))["by/hand"]
        engine = runtime.identity(stack, model.replicas[0].name)

        async def answered() -> bool:
            reply = await admin.chat("by/hand")
            return reply.status == 200 and bool(reply.body["choices"][0]["message"]["content"] == "one two three")

        await until("it answers", answered)
        assert (await admin.request("GET", "models/by/hand")).body["declared_by"] == "runtime"
        assert (await admin.request("PUT", "declarations/models/in-file", STUB)).code == "declared_in_files"
        drift = (await admin.request("GET", "drift")).body["items"]
        assert [(each["model"], each["kind"]) for each in drift if each["kind"] == "declaration"] == [
            ("by/hand", "declaration")
        ]

        stack.kill("controller")
        stack.start("controller")
        await stack.loaded("by/hand")
        listed = await asyncio.to_thread(stack.run_command, "declarations", "ls")
        assert listed.stdout.startswith("model by/hand, ")
        exported = await asyncio.to_thread(stack.run_command, "declarations", "export")
        assert (listed.returncode, exported.returncode) == (0, 0)
        (stack.desired / "more.yaml").write_text(exported.stdout)

        async def is_of_the_files() -> bool:
            return bool((await admin.request("GET", "models/by/hand")).body.get("declared_by") == "files")

        await until("the files declare it", is_of_the_files)
        left = (await admin.request("GET", "declarations")).body
        places = {
            "models.by/hand": f"{stack.desired}/more.yaml:2",
            "models.in-file": f"{stack.desired}/models.yaml:2",
        }
        assert left == {"models": {}, "keys": {}, "problems": [], "places": places}
        history = (await admin.request("GET", "history")).body["entries"]
        assert "the runtime declaration of by/hand has ended: the files declare it" in [
            each["message"] for each in history
        ]
        model = (await stack.loaded("by/hand"))["by/hand"]
        assert runtime.identity(stack, model.replicas[0].name) == engine, "nothing restarted"


async def test_a_copied_file_is_served_over_a_restart_and_by_a_command(
    process_stack: RoundhouseStack, clockwork: Path
) -> None:
    stack, runtime = process_stack, ProcessRuntimeFixture()
    stack.write("models.yaml", {"models": {}, "discover": True})
    await stack.open()
    async with AdminApi(stack.url) as admin:
        shutil.copy(clockwork, stack.models / "tick.gguf")

        async def answered() -> bool:
            return (await admin.chat("tick")).status == 200

        await until("the first request loads it", answered)
        engine = runtime.identity(stack, (await stack.loaded("tick"))["tick"].replicas[0].name)
        stack.kill("controller")
        stack.start("controller")
        await stack.loaded("tick")
        shutil.copy(clockwork, stack.models / "tock.gguf")
        served = await asyncio.to_thread(stack.run_command, "serve", str(stack.models / "tock.gguf"), "--as", "mine")
        assert (served.returncode, served.stdout.splitlines()[:2]) == (0, ["models:", "  mine:"]), served.stderr
        assert "mine: loaded, 1 of 1 replica ready" in served.stderr
        assert (await admin.chat("mine")).status == 200
        tick = (await stack.loaded("tick"))["tick"]
        assert runtime.identity(stack, tick.replicas[0].name) == engine, "nothing restarted"


async def _try_attacks(admin: AdminApi, evil: Path, bait: Path) -> None:
    """Every way to run a program or to read a file: each is refused, by the dry run too, and leaves nothing behind."""
    remote = {"backend": "openai_remote", "base_url": "http://127.0.0.1:9/v1"}
    for field, fields in {
        "env": STUB | {"env": {"PYTHONPATH": str(evil)}},
        "env ": STUB | {"env": {"LD_PRELOAD": str(bait)}},
        "extra_args": STUB | {"extra_args": ["--log-file", str(bait)]},
        "image": STUB | {"image": "registry.example/evil"},
        "api_key_file": remote | {"api_key_file": str(bait)},
        "api_key_env": remote | {"api_key_env": "HOME"},
        "llama_server_binary": {"model_path": "m.gguf", "llama_server_binary": str(evil / "evil")},
        "model_path": {"model_path": "link/m.gguf"},
        "model_path ": {"model_path": "../m.gguf"},
        "source": {"backend": "vllm", "source": f"file:{bait}"},
        "vllm_trust_remote_code": {"backend": "vllm", "model_path": "m", "vllm_trust_remote_code": True},
        "vllm_speculative_model": {"backend": "vllm", "model_path": "m", "vllm_speculative_model": str(evil)},
    }.items():
        refused = await admin.request("PUT", "declarations/models/evil", fields)
        assert (refused.status, refused.code) == (400, "invalid_declaration"), (field, refused.body)
        assert f"models.evil.{field.strip()}" in refused.body["error"]["message"]
        planned = await admin.request("POST", "plan", {"models": {"evil": fields}})
        assert (planned.status, planned.body["ok"]) == (200, False), field
        assert f"models.evil.{field.strip()}" in [each["field"] for each in planned.body["problems"]]
    for value in (str(evil), "os.path", "user/repo"):
        values = {"vllm_speculative_method": "draft_model", "vllm_speculative_model": value}
        for refused in (
            await admin.load("draft", values, wait=False),
            await admin.request("POST", "plan", {"loads": {"other-name": {"values": values}}}),
        ):
            assert (refused.status, refused.code) == (400, "invalid_load_request"), refused.body
            assert "vllm_speculative_model" in refused.body["error"]["message"]
    refused = await admin.load("draft", {"vllm_speculative_method": "custom_class"}, wait=False)
    assert (refused.status, refused.code) == (400, "invalid_load_request")
    assert "evil" not in [each["name"] for each in (await admin.request("GET", "models")).body["models"]]
    assert not (evil / "ran").exists()


async def test_no_request_runs_code_or_reads_a_file_with_and_without_keys(
    process_stack: RoundhouseStack, folder: Path
) -> None:
    stack = process_stack
    evil, bait = folder / "evil", folder / "bait"
    evil.mkdir()
    (evil / "sitecustomize.py").write_text(f"open({str(evil / 'ran')!r}, 'w')")
    bait.write_text("a secret line")
    (stack.models / "link").symlink_to(evil)
    stack.declare({"draft": {"backend": "vllm", "model_path": "m", "enabled": False, "aliases": ["other-name"]}})
    await stack.open()
    async with AdminApi(stack.url) as admin:
        await _try_attacks(admin, evil, bait)
        secret = "rh-" + "x" * 43
        key = {"sha256": hashlib.sha256(secret.encode()).hexdigest(), "scopes": ["admin"]}
        assert (await admin.request("PUT", "declarations/keys/operator", key)).status == 201

        async def is_closed() -> bool:
            return (await admin.request("GET", "models")).status == 401

        await until("the gateway wants a key", is_closed)
        admin.session.headers["authorization"] = f"Bearer {secret}"
        await _try_attacks(admin, evil, bait)
