"""Real engines as processes: the stub worker, and llama-server embedded through xllamacpp."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from controller.engines import engine_of
from controller.engines.ct2 import CT2Definition
from controller.engines.llama_cpp import LlamaCppDefinition
from controller.engines.llama_server import LlamaServerDefinition
from controller.engines.stub import StubDefinition
from controller.runtimes.base import SeenReplica, StartRequest
from controller.runtimes.process import ProcessRuntime
from controller.runtimes.process_stat import stats
from controller.schema.desired import Definition
from controller.state import Phase
from tests.support.clockwork_folders import make_ct2
from tests.support.process_engines import DEADLINE_S, Place, end_all, exited, only, request_for, running
from worker.clockwork import SENTENCE, make


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    place = Place(tmp_path)
    yield place
    end_all(place)


async def ready(runtime: ProcessRuntime, definition: Definition) -> SeenReplica:
    """The one replica, once it answers its health probe."""
    url = engine_of(definition).probe(definition).health_path
    async with asyncio.timeout(DEADLINE_S), aiohttp.ClientSession() as client:
        while True:
            seen = await only(runtime)
            assert seen.phase is Phase.RUNNING, seen.exit
            try:
                async with client.get(f"{seen.base_url}{url}") as answer:
                    if answer.status == 200:
                        return seen
            except aiohttp.ClientConnectionError:
                pass
            await asyncio.sleep(0.02)


async def complete(seen: SeenReplica, token: str | None) -> tuple[int, str]:
    """Status and text of one chat completion."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "temperature": 0}
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession() as client:
        url = f"{seen.base_url}/v1/chat/completions"
        async with client.post(url, json=body, headers=headers) as answer:
            content = await answer.json()
    return answer.status, content["choices"][0]["message"]["content"] if answer.status == 200 else ""


async def serve_and_end(place: Place, definition: Definition, text: str) -> None:
    """From preflight to the last process."""
    runtime = place.runtime()
    assert (await runtime.preflight("m", definition, None)).error is None
    request = request_for(definition)
    await runtime.start(request)
    seen = await ready(runtime, definition)
    assert await complete(seen, request.token) == (200, text)
    assert (await complete(seen, None))[0] == 401
    family = processes_of(request)
    assert place.record(request.name).pid in family
    await runtime.stop(request.name, 30)
    assert [pid for pid in family if running(pid)] == []
    await runtime.close()


def processes_of(request: StartRequest) -> list[int]:
    """Every process that has the replica's name in its environment."""
    mark = f"ROUNDHOUSE_REPLICA={request.name}".encode()
    found = []
    for stat in stats():
        try:
            if mark in Path(f"/proc/{stat.process.pid}/environ").read_bytes().split(b"\0"):
                found.append(stat.process.pid)
        except OSError:
            continue
    return found


async def test_the_stub_serves(place: Place) -> None:
    await serve_and_end(place, StubDefinition(backend="stub", stub_text="all is well"), "all is well")


async def test_ctranslate2_serves(place: Place) -> None:
    make_ct2(place.models / "m")
    await serve_and_end(place, CT2Definition(backend="ct2", model_path="m"), SENTENCE)


async def test_what_a_folder_of_ctranslate2_lacks_is_said_before_any_start(place: Place) -> None:
    make_ct2(place.models / "m")
    runtime, definition = place.runtime(), CT2Definition(backend="ct2", model_path="m")
    for name in ("tokenizer.json", "model.bin"):
        (place.models / "m" / name).unlink()
        error = (await runtime.preflight("m", definition, None)).error
        assert error is not None
        assert error.startswith(f"model_path: m/{name} is missing from {place.models}")
    await runtime.close()


@pytest.mark.embedded
async def test_llama_server_serves_embedded(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(place.root))
    make(place.models / "clockwork.gguf")
    await serve_and_end(place, LlamaServerDefinition(model_path="clockwork.gguf"), SENTENCE)


@pytest.mark.embedded
async def test_a_killed_launcher_takes_its_server_along(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(place.root))
    make(place.models / "clockwork.gguf")
    definition = LlamaServerDefinition(model_path="clockwork.gguf")
    runtime = place.runtime()
    request = request_for(definition)
    await runtime.start(request)
    await ready(runtime, definition)
    family = processes_of(request)
    pid = place.record(request.name).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    seen = await exited(runtime)
    assert seen.exit is not None
    assert seen.exit.code == -signal.SIGKILL
    assert [each for each in family if running(each)] == []
    await runtime.remove(request.name)
    await runtime.close()


async def test_an_engine_that_cannot_load_says_why_in_its_last_line(place: Place) -> None:
    runtime = place.runtime()
    await runtime.start(request_for(StubDefinition(backend="stub", stub_fail="the model is broken")))
    seen = await exited(runtime)
    assert seen.exit is not None
    assert seen.exit.code == 1
    assert seen.exit.log_tail.splitlines()[-1] == "the model is broken"


async def test_preflight_tells_what_is_missing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = place.runtime()
    (place.models / "m.gguf").write_bytes(b"GGUF")

    async def error(definition: Definition) -> str | None:
        result = await runtime.preflight("m", definition, None)
        assert result.ok == (result.error is None)
        return result.error

    assert await error(StubDefinition(backend="stub")) is None
    assert await error(LlamaServerDefinition(model_path="n.gguf")) == (
        f'model_path: n.gguf is missing from {place.models}; did you mean "m.gguf"?'
    )
    missing = place.root / "llama-server"
    named = LlamaServerDefinition(model_path="m.gguf", llama_server_binary=str(missing))
    assert await error(named) == f"program {missing} does not exist"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    wrong = await error(LlamaCppDefinition(backend="llama_cpp", model_path="m.gguf"))
    assert wrong == "Python package llama_cpp is not installed: pip install 'roundhouse[llama-cpp]'"
