"""Real engines as processes, beside those that the contract starts."""

from __future__ import annotations

import signal

import pytest

from controller.engines.ct2 import CT2Definition
from controller.engines.llama_cpp import LlamaCppDefinition
from controller.engines.llama_server import LlamaServerDefinition
from controller.engines.vllm_serve import VllmServeDefinition
from controller.schema.desired import Definition
from tests.support.clockwork_folders import make_ct2
from tests.support.process_engines import ProcessEngines
from tests.support.runtime_contract import exited, only, ready, running, serve_and_end
from worker.clockwork import SENTENCE, make_model

pytestmark = pytest.mark.engines


async def test_ctranslate2_serves(processes: ProcessEngines) -> None:
    make_ct2(processes.models / "m")
    await serve_and_end(processes, CT2Definition(backend="ct2", model_path="m"), SENTENCE)


@pytest.mark.embedded
async def test_a_killed_launcher_takes_its_server_along(
    processes: ProcessEngines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(processes.root))
    make_model(processes.models / "clockwork.gguf")
    runtime = processes.runtime()
    request = processes.request(processes.llama_server("clockwork.gguf"))
    await runtime.start_replica(request)
    await ready(runtime)
    family = processes.pids(request.name)
    assert len(family) > 1
    processes.kill(request.name)
    seen = await exited(runtime)
    assert seen.exit is not None
    assert seen.exit.code == -signal.SIGKILL
    assert [each for each in family if running(each)] == []
    await runtime.remove_replica(request.name)
    await runtime.close()


async def test_preflight_tells_which_program_or_package_is_missing(
    processes: ProcessEngines, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = processes.runtime()
    (processes.models / "m.gguf").write_bytes(b"GGUF")

    async def error(definition: Definition) -> str | None:
        return (await runtime.check_preflight("m", definition, None)).error

    missing = processes.root / "llama-server"
    named = LlamaServerDefinition(model_path="m.gguf", llama_server_binary=str(missing))
    assert await error(named) == f"program {missing} does not exist"
    (processes.models / "hf").mkdir()
    (processes.models / "hf" / "config.json").write_text('{"auto_map": {"AutoModel": "m.Own"}}')
    wrong = await error(VllmServeDefinition(backend="vllm_serve", model_path="hf"))
    assert (wrong or "").startswith("model_path: hf brings code of its own along (m.Own, in ")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    wrong = await error(LlamaCppDefinition(backend="llama_cpp", model_path="m.gguf"))
    assert wrong == "Python package llama_cpp is not installed: pip install 'roundhouse[llama-cpp]'"


async def test_what_is_gone_renders_no_more(processes: ProcessEngines) -> None:
    runtime, definition = processes.runtime(), processes.stub()
    await runtime.start_replica(processes.request(definition))
    seen = await only(runtime)
    await runtime.stop_replica(seen.name, 0)
    assert await runtime.render_replica(seen, definition, None) is None
