"""vLLM on the CPU, where `.ci/vllm` installed it: its programs, its parser, and our worker that launches it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from controller.engines import ENGINES
from controller.engines.base import Launch, RenderContext
from tests.support.ci_cache import REPOSITORY, cached_build
from tests.support.ports import free_port
from tests.support.require import require
from tests.support.worker_process import Worker, eventually

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
        told: dict[str, Any] | str = json.loads(self._process.stdout.readline())
        return told


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
