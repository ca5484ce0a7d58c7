"""Real engines that this machine has: llama-server embedded and as a program, models for LiteRT-LM, vLLM on the CPU."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from controller.engines import ENGINES
from controller.engines.base import Launch, RenderContext
from tests.support.ci_cache import REPOSITORY, cached_build
from tests.support.ports import free_port
from tests.support.require import require
from tests.support.worker_process import Worker, eventually

Kind = Literal["embedded", "binary"]


class Program(Worker):
    """`llama-server` itself, in the place of a worker."""

    def __init__(self, log: Path, port: int, program: Path, *args: str, token: str) -> None:
        self._start(log, port, [str(program), *args], {"LLAMA_API_KEY": token}, token)


def needed(kind: Kind) -> None:
    """Skip, or fail where it is required, without such a llama-server."""
    if kind == "embedded":
        available = importlib.util.find_spec("xllamacpp") is not None
        require("embedded", available, "xllamacpp is not installed (extra `embedded`)")
    else:
        require("llama_cpp", program().exists(), "llama-server is not built: run .ci/engines once")


def started(kind: Kind, folder: Path, name: str, model: Path, *flags: str, token: str) -> Worker:
    """A llama-server of four slots, which calls its model `inner-NAME`; not ready yet. It lets its state be changed,
    too."""
    port = free_port()
    args: tuple[str, ...] = ("--model", str(model), "--alias", f"inner-{name}", "--host", "127.0.0.1")
    args += ("--port", str(port), "--ctx-size", "4096", "--parallel", "4", "--kv-unified", "--fit", "off")
    args += ("--metrics", "--slots", "--jinja", "--no-webui", "--threads", "1", *flags)
    args += ("--props", "--slot-save-path", str(folder))
    log = folder / f"{name}.log"
    if kind == "embedded":
        return Worker(log, port, "llama_server", "--", *args, token=token, env={"LLAMA_API_KEY": token})
    return Program(log, port, program(), *args, token=token)


def llama_cpp_worker(folder: Path, model: Path, served_name: str, token: str | None = None) -> Worker:
    """Our own worker with llama-cpp-python; not ready yet. Skips where that is not installed."""
    available = importlib.util.find_spec("llama_cpp") is not None
    require("llama_cpp", available, "llama-cpp-python is not installed (extra `llama-cpp`)")
    port = free_port()
    args = ("--host", "127.0.0.1", "--port", str(port), "--served-name", served_name, "--model", str(model))
    env = {} if token is None else {"ROUNDHOUSE_ENGINE_TOKEN": token}
    return Worker(folder / f"{served_name}.log", port, "llama_cpp", *args, token=token, env=env)


def program() -> Path:
    """llama-server, where `.ci/engines` puts it."""
    return cached_build("engines") / "app" / "llama-server"


def litertlm(name: str) -> Path:
    """`clockwork` or `caller`, as `litertlm_model.py` says. Skips the test where they were not written."""
    folder = cached_build("litertlm")
    require("litertlm", folder.is_dir(), "the .litertlm models were not written (.ci/litertlm)")
    return folder / f"{name}.litertlm"


ON_CPU: Mapping[str, Any] = {
    "vllm_dtype": "float32",
    "vllm_enforce_eager": True,
    "vllm_kv_cache_memory_bytes": 2**28,
}
"""Fields with which it serves the demo model without a GPU."""
STARTS_S = 240.0
"""Seconds within which it is ready: 40 on two idle cores."""


def programs() -> Path:
    """The folder of `vllm` and `python`; skips, or fails where it is required, without them."""
    installed = cached_build("vllm")
    require("vllm", (installed / ".ready").exists(), "vLLM is not installed: run .ci/vllm once")
    return installed / "bin"


def engine_cache() -> Path:
    """What vLLM remembers between starts: what model classes are capable of, which takes it 10 s to find out."""
    return cached_build("vllm") / "roundhouse-tests"


class Parser:
    """vLLM's parser in a process of its own, because building it takes 14 s."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def parse(self, arguments: Sequence[str]) -> dict[str, Any] | str:
        """What follows `vllm` on a command line: the values, or why it is refused."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(list(arguments)) + "\n")
        self._process.stdin.flush()
        parsed: dict[str, Any] | str = json.loads(self._process.stdout.readline())
        return parsed


@contextmanager
def parser(folder: Path) -> Iterator[Parser]:
    command = [str(programs() / "python"), str(REPOSITORY / "tests" / "support" / "vllm_parser.py")]
    pipe = subprocess.PIPE
    with (
        (folder / "parser.log").open("w") as log,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True, cwd=folder) as process,
    ):
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", (folder / "parser.log").read_text()
            yield Parser(process)
        finally:
            process.kill()


class VllmWorker(Worker):
    """`python -m worker vllm`, in vLLM's own environment."""

    def __init__(self, log: Path, port: int, launch: Launch, token: str) -> None:
        own = {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "VLLM_API_KEY": token}
        self._start(log, port, launch.argv, {**launch.env, **own}, token)

    def ready(self) -> VllmWorker:
        eventually("vLLM serves", self._is_healthy, STARTS_S)
        return self

    def _is_healthy(self) -> bool:
        assert self.process.poll() is None, f"vLLM ended with {self.process.returncode}:\n{self.log}"
        return self.status_of("/health") == 200


def start_worker(folder: Path, name: str, token: str, **fields: Any) -> VllmWorker:
    """A worker on a folder's model `name`, as the controller renders it; not ready yet."""
    engine, port = ENGINES["vllm"], free_port()
    definition = engine.definition.model_validate({"backend": "vllm", "model_path": name, **ON_CPU, **fields})
    context = RenderContext(
        runtime="process",
        served_name=name,
        models_root=PurePosixPath(folder),
        host="127.0.0.1",
        port=port,
        cache_dir=PurePosixPath(engine_cache()),
        executables={"python": str(programs() / "python")},
    )
    return VllmWorker(folder / f"{port}.log", port, engine.render_command(definition, context), token)
