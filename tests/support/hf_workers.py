"""Workers of the engines whose models have a Hugging Face tokenizer: CTranslate2, and ExLlamaV3 on its fake."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.clockwork_folders import make_ct2, make_hf
from tests.support.ports import free_port
from tests.support.scripted_model_file import Token
from tests.support.worker_process import Worker
from worker.__main__ import parse_engine
from worker.clockwork import CHAT_TEMPLATE
from worker.errors import LoadError

Serve = Callable[..., Worker]
MAKE: dict[str, Callable[..., None]] = {"ct2": make_ct2, "exllamav3": make_hf}
ROOT = Path(__file__).parents[2]


def start(engine: str, log: Path, model: Path, *flags: str, env: dict[str, str] | None = None) -> Worker:
    """A worker on this folder; whoever starts it ends it. ExLlamaV3 and torch are fakes, save with another `env`."""
    site = log.parent / "runtime_fixture"
    if engine == "exllamav3" and not site.exists():
        site.mkdir()
        for name in ("exllamav3", "torch"):
            (site / f"{name}.py").write_text(f"from tests.fakes.fake_{name} import *\n")
    port = free_port()
    args = ("--host", "127.0.0.1", "--port", str(port), "--served-name", "demo", "--model", str(model))
    path = os.pathsep.join((str(site), str(ROOT)))
    return Worker(log, port, engine, *args, *flags, env={"PYTHONPATH": path, "OMP_NUM_THREADS": "1", **(env or {})})


def load_error(engine: str, model: Path, *flags: str) -> str:
    """What an engine says, in this process, of a folder that it cannot load."""
    listen = ("--host", "127.0.0.1", "--port", "1", "--served-name", "demo", "--model", str(model))
    module, args = parse_engine(engine, [*listen, *flags])
    with pytest.raises(LoadError) as raised:
        module.create(args).load()
    return str(raised.value)


@contextmanager
def serving(engine: str, folder: Path) -> Iterator[Serve]:
    """Starts workers whose models say these tokens; the same one for the same arguments."""
    workers: dict[object, Worker] = {}

    def serve(says: Sequence[Token] = (), template: str | None = CHAT_TEMPLATE, *flags: str, **how: Any) -> Worker:
        key = (tuple(says), template, flags, repr(how))
        if key not in workers:
            model = folder / f"model{len(workers)}"
            MAKE[engine](model, says, template, **how)
            workers[key] = start(engine, folder / f"{len(workers)}.log", model, *flags)
        return workers[key].ready()

    try:
        yield serve
    finally:
        for worker in workers.values():
            worker.__exit__()
