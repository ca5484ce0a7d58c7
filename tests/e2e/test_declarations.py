"""A model that is declared at run time, from the first answer to the commit that ends the declaration."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.admin import AdminApi
from tests.support.roundhouse_stack import REPOSITORY, RoundhouseStack
from tests.support.runtime_fixtures import ProcessRuntimeFixture
from tests.support.keys import make_key
from tests.support.wait import until

pytestmark = pytest.mark.engines

STUB: dict[str, Any] = {"backend": "stub", "stub_text": "one two three"}


def run_command(stack: RoundhouseStack, *arguments: str) -> str:
    """What a `roundhouse` command prints to stdout. It must end with 0."""
    command = [sys.executable, "-c", "from controller.cli.main import main; main()", *arguments]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=stack.environment(), capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_from_the_first_answer_to_the_commit(tmp_path: Path) -> None:
    runtime = ProcessRuntimeFixture()
    stack = RoundhouseStack(tmp_path, "process", runtime.env())
    stack.declare({"in-file": STUB | {"enabled": False}})
    await stack.open()
    try:
        async with AdminApi(stack.url) as admin:
            made = await admin.ask("PUT", "declarations/models/by/hand", STUB)
            assert (made.status, made.body["kind"], made.body["name"]) == (201, "models", "by/hand")
            model = (await stack.loaded("by/hand"))["by/hand"]
            engine = runtime.identity(stack, model.replicas[0].name)
            question = {"model": "by/hand", "messages": [{"role": "user", "content": "Hi"}]}

            async def answered() -> bool:
                async with admin.session.post(f"{stack.url}/v1/chat/completions", json=question) as answer:
                    said = await answer.json()
                return answer.status == 200 and bool(said["choices"][0]["message"]["content"] == "one two three")

            await until("it answers", answered)
            assert (await admin.ask("GET", "models/by/hand")).body["declared_by"] == "runtime"
            assert (await admin.ask("PUT", "declarations/models/in-file", STUB)).code == "declared_in_files"
            drift = (await admin.ask("GET", "drift")).body["items"]
            assert [(each["model"], each["kind"]) for each in drift if each["kind"] == "declaration"] == [
                ("by/hand", "declaration")
            ]

            stack.kill("controller")
            stack.start("controller")
            await stack.loaded("by/hand")
            assert (await asyncio.to_thread(run_command, stack, "declarations", "ls")).startswith("model by/hand, ")
            exported = await asyncio.to_thread(run_command, stack, "declarations", "export")
            (stack.desired / "more.yaml").write_text(exported)

            async def is_of_the_files() -> bool:
                return bool((await admin.ask("GET", "models/by/hand")).body.get("declared_by") == "files")

            await until("the files declare it", is_of_the_files)
            assert (await admin.ask("GET", "declarations")).body == {"models": {}, "keys": {}, "problems": []}
            history = (await admin.ask("GET", "history")).body["entries"]
            assert "the runtime declaration of by/hand has ended: the files declare it" in [
                each["message"] for each in history
            ]
            model = (await stack.loaded("by/hand"))["by/hand"]
            assert runtime.identity(stack, model.replicas[0].name) == engine, "nothing restarted"
    finally:
        await stack.close()
    assert runtime.left(stack) == []
