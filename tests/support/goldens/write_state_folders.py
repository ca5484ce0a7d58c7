"""`python -m tests.support.goldens.write_state_folders DAY`: keep what this commit's programs write as a fixture.

A real controller with the process runtime and a real gateway: models that are loaded, loaded and unloaded by hand, on
demand, at rest, broken and remote; keys; edits; stored responses. Secrets are test's own, and no path of this machine
stays in what is kept.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import signal
import sqlite3
import sys
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from tests.support.goldens.golden import print_json
from tests.support.goldens.product import JOURNAL_NAME, RESPONSES_NAME, StateDir, boot_id
from tests.support.goldens.state_folders import FOLDERS, INSTANCE, KEY, TENANT, copy_of, read_controller, read_gateway
from tests.support.http_client import answers
from tests.support.roundhouse_stack import REPOSITORY, RoundhouseStack
from tests.support.wait import until

MODELS: Final[dict[str, dict[str, Any]]] = {
    "served": {"backend": "stub", "aliases": ["default"], "stub_text": "I am served."},
    "by-hand": {"backend": "stub", "enabled": False, "replica_max": 3},
    "put-away": {"backend": "stub"},
    "on-demand": {"backend": "stub", "enabled": False, "autoload": True},
    "at-rest": {"backend": "stub", "enabled": False, "autoload": True, "idle_ttl_s": 0.5, "min_residency_s": 0},
    "broken": {"backend": "stub", "stub_fail": "as asked"},
    "llama": {"model_path": "missing.gguf", "enabled": False, "llama_server_n_ctx": 4096},
    "remote": {"backend": "openai_remote", "base_url": "http://127.0.0.1:9/v1", "enabled": False},
}
_AWAY: Final = ("controller.sock", "cache", "work", "up.json", "up.lock")
"""What is of no use to a later controller, or cannot be kept."""


class Writer:
    def __init__(self, root: Path) -> None:
        self.stack = RoundhouseStack(root, "process", {"ROUNDHOUSE_RESYNC_S": "1"})
        store = StateDir.open_folder(self.stack.state, INSTANCE)
        drawn = store.secret.hex()
        store.close()
        identity = self.stack.state / "identity.json"
        identity.write_text(identity.read_text().replace(drawn, sha256(b"golden").hexdigest()))
        keys = {TENANT: {"sha256": sha256(KEY.encode()).hexdigest(), "scopes": ["inference", "admin"]}}
        (self.stack.desired / "keys.json").write_text(json.dumps({"keys": keys}))
        self.responses: list[str] = []

    async def play(self) -> None:
        """Everything that leaves something behind."""
        stack = self.stack
        stack.declare(MODELS)
        stack.start("controller")
        stack.start("gateway")
        await stack.loaded("served", "put-away")
        await stack.model_where("broken", lambda model: model.state == "failed", "has failed")
        await until("the gateway has a table", lambda: answers(f"{stack.url}/v1/models", key=KEY))
        await self.post("/v1/admin/models/by-hand/load", {"replicas": 2})
        await self.post("/v1/admin/models/put-away/unload", {"hold": True})
        await self.post("/v1/admin/models/llama/load?wait=false", {"llama_server_n_ctx": 8192})
        await self.put("/v1/admin/declarations/models/by-word", {"backend": "stub", "enabled": False})
        await self.put("/v1/admin/declarations/keys/by-word", {"sha256": "0" * 64})
        message = {"role": "user", "content": "a"}
        for model in ("on-demand", "at-rest"):
            await self.post("/v1/chat/completions", {"model": model, "messages": [message]})
        await stack.model_where("at-rest", lambda model: model.state == "unloaded", "is unloaded")
        previous = None
        for text in ("one", "two", "three"):
            previous = await self._respond(text, previous)
        edited = {"broken": {**MODELS["broken"], "queue_limit": 3}, "new": {"backend": "stub", "enabled": False}}
        stack.declare({**MODELS, **edited})
        await stack.model_where("new", lambda model: model.state == "unloaded", "is declared")
        await stack.loaded("served", "by-hand", "on-demand")
        observed = stack.state / "observed-memory.json"
        await until("what engines take is kept", lambda: observed.exists() and "on-demand" in observed.read_text())

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """JSON of a request to the gateway."""
        reply = await self.stack.request("POST", path, body, key=KEY)
        assert reply.status in (200, 202), reply.text
        return reply.body

    async def put(self, path: str, body: dict[str, Any]) -> None:
        """Declare something at run time."""
        reply = await self.stack.request("PUT", path, body, key=KEY)
        assert reply.status == 201, reply.text

    async def _respond(self, text: str, previous: str | None) -> str:
        response = await self.post(
            "/v1/responses", {"model": "served", "input": text, "previous_response_id": previous}
        )
        self.responses.append(response["id"])
        return str(response["id"])

    def keep(self, to: Path) -> None:
        """End both programs, engines left alone, and copy what they keep."""
        self.stack.kill("gateway", signal.SIGTERM)
        self.stack.kill("controller", signal.SIGTERM)
        shutil.copytree(self.stack.state, to / "controller", ignore=shutil.ignore_patterns(*_AWAY, RESPONSES_NAME))
        (to / "gateway").mkdir()
        shutil.copy(self.stack.state / RESPONSES_NAME, to / "gateway")
        places = {str(self.stack.root): "/srv/roundhouse", sys.executable: "/opt/roundhouse/bin/python"}
        _clean(to, {**places, str(REPOSITORY): "/opt/roundhouse", boot_id(): "00000000-0000-4000-8000-000000000000"})


def _clean(folder: Path, replaced: dict[str, str]) -> None:
    """Take this machine out of what is kept."""
    for path in (path for path in folder.rglob("*") if path.is_file()):
        if path.name == JOURNAL_NAME:
            with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as journal:
                for old, new in replaced.items():
                    journal.execute("UPDATE entries SET message = replace(message, ?1, ?2)", (old, new))
                    journal.execute("UPDATE entries SET details = replace(details, ?1, ?2)", (old, new))
                journal.execute("VACUUM")
                journal.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        elif path.suffix != ".db":
            text = path.read_text()
            for old, new in replaced.items():
                text = text.replace(old, new)
            path.write_text(text)
    for path in (path for path in folder.rglob("*") if path.is_file()):
        assert not any(old.encode() in path.read_bytes() for old in replaced), f"{path} still names this machine"


async def write(to: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="rh") as root:
        writer = Writer(Path(root))
        try:
            await writer.play()
            writer.keep(to)
        finally:
            await writer.stack.close()
        expected = {
            "controller": read_controller(copy_of(to / "controller", Path(root) / "read")),
            "gateway": read_gateway(copy_of(to / "gateway", Path(root) / "read"), writer.responses),
        }
    (to / "expected.json").write_text(print_json(expected))


def main() -> None:
    """Make a folder that is not there yet."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.goldens.write_state_folders")
    parser.add_argument("day", metavar="DAY", help="the folder's name, such as 2027-01-31")
    to = FOLDERS / parser.parse_args().day
    if to.exists():
        parser.error(f"{to} is there already: what a commit wrote is never written anew")
    to.mkdir(parents=True)
    asyncio.run(write(to))
    print(f"{to}: {sum(path.stat().st_size for path in to.rglob('*') if path.is_file()) // 1024} KiB")


if __name__ == "__main__":
    main()
