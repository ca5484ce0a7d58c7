"""What a running `roundhouse up` leaves in its state folder: no other user of the host can read a file of it."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import PROGRAM
from tests.support.http_client import answers, send_request
from tests.support.ports import free_port
from tests.support.roundhouse_stack import REPOSITORY
from tests.support.wait import until

pytestmark = [pytest.mark.engines, pytest.mark.embedded]

LAX_BEFORE = ("retrieval-token", "responses.db", "old.json")
MODELS = """
models:
  chat: {backend: stub, enabled: true, stub_text: "a private word"}
"""


@pytest.fixture
def up(folder: Path) -> Iterator[tuple[Path, str]]:
    """A real `up` that inherited the laxest umask, over a state folder that everybody may enter, with files that an
    earlier version left readable. Its folder and the gateway's URL."""
    for name in ("desired", "models", "state"):
        (folder / name).mkdir()
    (folder / "desired" / "models.yaml").write_text(MODELS)
    (folder / "state").chmod(0o755)
    for name in LAX_BEFORE:
        (folder / "state" / name).write_text("" if name.endswith(".db") else "an-older-token-of-retrieval\n")
        (folder / "state" / name).chmod(0o644)
    port = free_port()
    own = {name: value for name, value in os.environ.items() if not name.startswith("ROUNDHOUSE_")}
    folders = {f"ROUNDHOUSE_{name.upper()}": str(folder / name) for name in ("desired", "models", "state")}
    process = subprocess.Popen(
        [PROGRAM, "up", "--port", str(port)],
        cwd=REPOSITORY,
        env={**own, **folders, "ROUNDHOUSE_RUNTIME": "process", "ROUNDHOUSE_PAGE": "off"},
        stderr=(folder / "err").open("wb"),
        stdout=subprocess.DEVNULL,
        umask=0,
    )
    try:
        yield folder, f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


async def test_no_file_of_the_state_folder_is_for_others(up: tuple[Path, str]) -> None:
    folder, url = up

    async def until_done(what: str, path: str, **body: Any) -> None:
        await until(what, lambda: answers(url + path, "POST", body))

    await until_done("it answers", "/v1/responses", model="chat", input="Hi", store=True)
    await until_done("a document is kept", "/v1/documents?wait=true", id="d", text="A fox.")
    await until_done("it is found", "/v1/search", query="fox")
    reply = await send_request(f"{url}/v1/admin/declarations/models/late", "PUT", {"backend": "stub"})
    assert reply.status in (200, 201), reply.text
    kept = [*LAX_BEFORE, "up.json", "identity.json", "memory.json"]
    found = {path.relative_to(folder / "state"): path.lstat().st_mode for path in (folder / "state").rglob("*")}
    files = {str(path): mode for path, mode in found.items() if not stat.S_ISDIR(mode) and not stat.S_ISLNK(mode)}
    assert len(files) > 20, "programs, engine, documents and logs have files of their own"
    assert set(kept) <= files.keys(), files.keys()
    assert {path: oct(mode) for path, mode in files.items() if mode & 0o077} == {}
    assert f"other users of this host may look into {folder / 'state'}: `chmod 700" in (folder / "err").read_text()
