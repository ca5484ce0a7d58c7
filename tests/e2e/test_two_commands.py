"""`make up` from a clean checkout: installs, makes the demo model, serves; Ctrl-C leaves nothing."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import openai
import psutil
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.support.ports import free_port
from tests.support.roundhouse_stack import REPOSITORY, SENTENCE
from tests.support.wait import until

pytestmark = pytest.mark.engines

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello"}]
INSTALL_DEADLINE_S = 240


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What git tracks, in an empty folder."""
    target = tmp_path_factory.mktemp("co")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
    ).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (REPOSITORY / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, target / name)
    return target


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ROUNDHOUSE_", "MAKE", "MFLAGS"))}
    kept.pop("VIRTUAL_ENV", None)
    return kept


@pytest.fixture
def up(checkout: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """`make up` in the foreground of a session of its own, and its port."""
    port = free_port()
    with (checkout / "up.log").open("w") as log:
        process = subprocess.Popen(
            ["make", "up", f"ARGS=--port {port}"],
            cwd=checkout,
            env=_environment(),
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    try:
        yield process, port
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(60)


def _of(checkout: Path) -> list[str]:
    """Command lines of processes that run out of the checkout."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        info = process.info
        if str(checkout) in f"{info['cwd']} {' '.join(info['cmdline'] or [])}":
            found.append(" ".join(info["cmdline"] or []))
    return found


@pytest.mark.timeout(INSTALL_DEADLINE_S + 120)
async def test_make_up_serves_and_ctrl_c_leaves_nothing(checkout: Path, up: tuple[subprocess.Popen[str], int]) -> None:
    process, port = up

    def announced() -> bool:
        assert process.poll() is None, (checkout / "up.log").read_text()
        return "Try: curl" in (checkout / "up.log").read_text()

    await until("the line with a curl to try", announced, INSTALL_DEADLINE_S)
    text = (checkout / "up.log").read_text()
    assert f"http://127.0.0.1:{port}/v1/chat/completions" in text
    assert "real model" in text
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") as client:
        assert {model.id async for model in client.models.list()} >= {"clockwork", "clockwork-embed"}
        answer = await client.chat.completions.create(model="clockwork", messages=HELLO)
        assert answer.choices[0].message.content == SENTENCE
        stream = await client.chat.completions.create(model="clockwork", messages=HELLO, stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == SENTENCE
        completion = await client.completions.create(model="clockwork", prompt="<|assistant|>", max_tokens=4)
        assert completion.choices[0].text == "The quick brown fox"
        embedded = await client.embeddings.create(model="clockwork-embed", input="one")
        assert len(embedded.data[0].embedding) == 128
    # Ctrl-C reaches the whole foreground group.
    os.killpg(process.pid, signal.SIGINT)
    process.wait(60)
    assert _of(checkout) == []
    assert "Traceback" not in (checkout / "up.log").read_text()


def test_a_taken_port_is_one_line(checkout: Path) -> None:
    if not (checkout / ".venv").exists():
        pytest.fail("the test above installs the environment; it did not")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [checkout / ".venv" / "bin" / "roundhouse", "up", "--runtime", "process", "--port", str(port)],
            cwd=checkout,
            env=_environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, done.stderr
    assert str(port) in lines[0]
    assert _of(checkout) == []


@pytest.mark.parametrize(
    ("python", "words"),
    [("no-such-python", "no-such-python is missing"), ("/bin/false", "/bin/false is older than 3.11")],
)
def test_a_missing_python_is_one_line(tmp_path: Path, python: str, words: str) -> None:
    shutil.copy(REPOSITORY / "Makefile", tmp_path)
    (tmp_path / "requirements").mkdir()
    for name in ("requirements/all.txt", "pyproject.toml"):
        (tmp_path / name).write_text("")
    done = subprocess.run(
        ["make", "install", f"PYTHON={python}"],
        cwd=tmp_path,
        env=_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    [line] = [line for line in done.stderr.splitlines() if not line.startswith("make: ***")]
    assert words in line
