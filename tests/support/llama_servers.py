"""llama-server both ways: embedded through xllamacpp, and the program that `.ci/engines` builds."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Literal

from tests.support.ci_cache import cached_build
from tests.support.ports import free_port
from tests.support.require import require
from tests.support.worker_process import Worker

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
