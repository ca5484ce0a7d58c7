"""One engine from start to end, as a container of a real Docker Engine."""

from __future__ import annotations

import shutil
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from controller.engines.llama_server import LlamaServerDefinition
from controller.failures import verdict_of_exit
from controller.runtimes.process_logs import EXIT_LINES
from controller.state import Phase
from tests.support.docker_engine import (
    RUN,
    STUBBORN,
    Yard,
    exited,
    only,
    open_yard,
    post,
    ready,
    said,
    shell,
    stub,
)
from tests.support.docker_images import ensure_images

pytestmark = pytest.mark.docker

SENTENCE = "The quick brown fox jumps over a lazy dog. And then it sleeps!"


@pytest.fixture
async def yard(tmp_path: Path) -> AsyncIterator[Yard]:
    yard = open_yard(tmp_path)
    yield yard
    await yard.close()


async def test_an_engine_is_started_seen_and_ended(yard: Yard) -> None:
    runtime = yard.runtime()
    request = yard.request(shell(f"echo hello; {RUN}"), "some/model:q4")
    assert await runtime.list() == []

    await runtime.start(request)
    seen = await only(runtime)
    assert (seen.id, seen.name, seen.phase) == (request.id, request.name, Phase.RUNNING)
    assert (seen.claims, seen.exit) == ({}, None)
    assert seen.started_at is not None
    assert seen.created_at <= seen.started_at
    assert seen.argv[:3] == ("/app/llama-server", "--model", "/models/m.gguf")
    assert seen.image_id == yard.client.images.get(request.image or "").id
    await said(runtime, request.name, "hello")

    await runtime.stop(request.name, 30)
    assert await runtime.list() == []
    assert yard.mine() == []
    assert await runtime.log_tail(request.name) == "hello"
    saved = yard.state / "logs" / "ended" / f"{request.name}.log"
    assert saved.read_text() == "hello\n"
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600


async def test_a_stub_worker_answers_with_its_token_and_not_without(yard: Yard) -> None:
    runtime = yard.runtime()
    request = yard.request(stub(stub_text="words of the stub"))
    await runtime.start(request)
    url = await ready(await only(runtime))
    assert url.startswith("http://127.0.0.1:")
    body = {"prompt": "a", "max_tokens": 8}
    answer = post(f"{url}/v1/completions", body, request.token)
    assert answer.json()["choices"][0]["text"] == "words of the stub"
    assert post(f"{url}/v1/completions", body, None).status_code == 401


async def test_llama_server_says_its_sentence_with_its_token_and_nothing_without(yard: Yard, clockwork: Path) -> None:
    shutil.copy(clockwork, yard.models / "clockwork.gguf")
    runtime = yard.runtime()
    definition = LlamaServerDefinition(model_path="clockwork.gguf", image=ensure_images()["llama-server"])
    request = yard.request(definition)
    await runtime.start(request)
    url = await ready(await only(runtime))
    body = {"messages": [{"role": "user", "content": "Hello?"}], "temperature": 0}
    answer = post(f"{url}/v1/chat/completions", body, request.token)
    assert answer.json()["choices"][0]["message"]["content"] == SENTENCE
    assert post(f"{url}/v1/chat/completions", body, None).status_code == 401
    assert request.token not in await runtime.log_tail(request.name, 400)


async def test_starting_a_name_again_and_ending_it_again_are_no_errors(yard: Yard) -> None:
    runtime = yard.runtime()
    request = yard.request(shell(RUN))
    await runtime.start(request)
    before = yard.inspect(request.name)
    await runtime.start(request)
    after = yard.inspect(request.name)
    assert (after["Id"], after["State"]["StartedAt"]) == (before["Id"], before["State"]["StartedAt"])

    await runtime.stop(request.name, 30)
    await runtime.stop(request.name, 30)
    await runtime.remove(request.name)
    assert await runtime.list() == []


async def test_an_end_has_its_exit_code_and_last_lines(yard: Yard) -> None:
    runtime = yard.runtime()
    request = yard.request(shell("exec >&2; seq 1 900; echo 'out of luck'; exit 7"))
    await runtime.start(request)
    seen = await exited(runtime)
    assert seen.base_url is None
    assert seen.exit is not None
    assert (seen.exit.code, seen.exit.oom) == (7, False)
    lines = seen.exit.log_tail.splitlines()
    assert len(lines) == EXIT_LINES
    # One stream: of two, Docker keeps each one's order and not the order between them.
    assert lines[-2:] == ["900", "out of luck"]

    await runtime.start(request)
    assert (await only(runtime)).phase is Phase.EXITED, "a start that has ended is not begun again"
    await runtime.remove(request.name)
    assert await runtime.list() == []
    assert "out of luck" in await runtime.log_tail(request.name)


async def test_a_killed_engine_is_seen_with_how_it_ended(yard: Yard) -> None:
    runtime = yard.runtime()
    request = yard.request(shell(f"echo last words; {RUN}"))
    await runtime.start(request)
    await said(runtime, request.name, "last words")
    yard.client.containers.get(request.name).kill()
    seen = await exited(runtime)
    assert seen.exit is not None
    assert (seen.exit.code, seen.exit.oom, seen.exit.log_tail) == (137, False, "last words")


async def test_an_engine_beyond_its_memory_is_seen_as_out_of_memory(yard: Yard) -> None:
    runtime = yard.runtime()
    body = "exec python3 -c 'print(\"filling\", flush=True); x = bytearray(512 * 2**20)'"
    await runtime.start(yard.request(shell(body, memory_mib=64)))
    seen = await exited(runtime)
    assert seen.exit is not None
    assert (seen.exit.code, seen.exit.oom, seen.exit.log_tail) == (137, True, "filling")
    assert verdict_of_exit("llama_server", seen.exit, was_ready=False).message.startswith("out of memory")


async def test_an_engine_that_ignores_its_stop_signal_is_killed_with_all_its_children(yard: Yard) -> None:
    runtime = yard.runtime()
    request = yard.request(shell(f"sleep 600 & {STUBBORN}"))
    await runtime.start(request)
    await said(runtime, request.name, "deaf")
    pids = [int(row[1]) for row in yard.client.containers.get(request.name).top()["Processes"]]
    assert len(pids) >= 3
    await runtime.stop(request.name, 0.5)
    assert await runtime.list() == []
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


async def test_an_engine_gets_its_image_s_stop_signal_and_time_to_end(yard: Yard) -> None:
    runtime = yard.runtime()
    body = "trap 'echo leaving; sleep 0.3; echo left; exit 0' TERM; echo here; while :; do sleep 0.1; done"
    request = yard.request(shell(body))
    await runtime.start(request)
    await said(runtime, request.name, "here")
    await runtime.stop(request.name, 60)
    assert await runtime.log_tail(request.name) == "here\nleaving\nleft"


async def test_what_runs_is_not_removed(yard: Yard) -> None:
    runtime = yard.runtime()
    request = yard.request(shell(RUN))
    await runtime.start(request)
    await runtime.remove(request.name)
    assert (await only(runtime)).phase is Phase.RUNNING


async def test_the_kept_output_is_bounded(yard: Yard) -> None:
    runtime = yard.runtime(log_mib=2)
    request = yard.request(shell(f"seq -f 'line %08g {'x' * 80}' 1 60000; echo done; {RUN}"))
    await runtime.start(request)
    await said(runtime, request.name, "done")
    kept = yard.client.containers.get(request.name).logs()
    assert 100_000 < len(kept) <= 2 * 2**20
    assert kept.endswith(b"done\n")
    config = yard.inspect(request.name)["HostConfig"]["LogConfig"]
    assert config == {"Type": "json-file", "Config": {"max-file": "2", "max-size": "1m"}}
    await runtime.stop(request.name, 30)
    saved = yard.state / "logs" / "ended" / f"{request.name}.log"
    assert saved.stat().st_size <= 64 * 1024


async def test_closing_leaves_engines_running_and_the_last_one_out_removes_the_network(yard: Yard) -> None:
    runtime = yard.runtime()
    request = yard.request(shell(RUN))
    await runtime.start(request)
    await runtime.close()
    assert yard.inspect(request.name)["State"]["Running"]
    assert yard.client.networks.list(names=[yard.network])

    after = yard.runtime()
    await after.stop(request.name, 30)
    await after.close()
    assert yard.mine() == []
    assert yard.client.networks.list(names=[yard.network]) == []
