"""The worker's engines as their contract sees them: what each of them offers, and workers of each that tests share."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.clockwork_folders import make_ct2, make_hf
from tests.support.installed_engines import litertlm
from tests.support.onnx_models import write_model, write_vocabulary
from tests.support.ports import free_port
from tests.support.require import require
from tests.support.scripted_model_file import Token, make_scripted_model
from tests.support.scripted_models import CHAT, USER
from tests.support.worker_process import Worker
from worker.__main__ import parse_engine
from worker.clockwork import CHAT_TEMPLATE, COMPLETION_TOKENS, CONTEXT, SENTENCE, make_model, make_vocabulary
from worker.engine import Api
from worker.errors import LoadError

TOKEN = "secret"
"""Every worker's here, so that each test proves that it is taken."""
ROOT = Path(__file__).parents[2]
END = str(make_vocabulary().id_of("<|end|>"))
BOUND = 1024
"""Tokens of a request, prompt and answer, to a plain worker."""
LONG_TEXTS = ["hello " * 510] * 4_000
TEXT_APIS: frozenset[Api] = frozenset({"chat", "completions", "tokens", "prompts"})
LLAMA_SERVER_FLAGS = (
    *("--alias", "demo", "--ctx-size", str(BOUND), "--threads", "1", "--fit", "off", "--metrics", "--slots"),
    *("--jinja", "--no-webui", "--parallel", "2", "--kv-unified"),
)


@dataclass(frozen=True, kw_only=True)
class WorkerEngine:
    """One engine, by what a client sees of it. What is left out is as with most."""

    name: str
    apis: frozenset[Api] = TEXT_APIS
    slots: int = 1
    """Requests that its busy worker works on side by side."""
    context: int | None = BOUND
    """Of its plain worker; None: it has no bound."""
    own_context: int = CONTEXT
    """Of a request where no flag bounds it."""
    prompt_tokens: int = 8
    """Of `USER`: `<|user|>`, `<|end|>` and `<|assistant|>`, and the five letters."""
    completion_tokens: int = COMPLETION_TOKENS
    """Of `SENTENCE`, as it counts them."""
    samples: frozenset[str] = frozenset()
    """Fields by which it samples, and whose effect is seen, beside `temperature`, `top_p` and `top_k`."""
    wild: dict[str, Any] = field(default_factory=dict)
    """What lets every token be chosen, at a high temperature."""
    endless: dict[str, Any] = field(default_factory=dict)
    """With these fields, a conversation goes on for long with its busy worker."""
    counts: str = "tokens_predicted_total"
    """The figure that grows with its work."""
    whole: int = 4000
    """By how much that would grow, at least, if nobody left."""
    own_surface: bool = False
    """Its HTTP surface is the engine's own, not the worker's."""

    @property
    def chats(self) -> bool:
        return "chat" in self.apis

    @property
    def request(self) -> tuple[str, dict[str, Any]]:
        """Path and body of a request that it serves."""
        return (CHAT, {"messages": USER}) if self.chats else ("/v1/embeddings", {"input": "hello world"})

    @property
    def work(self) -> tuple[str, dict[str, Any]]:
        """Path and body of a request that its busy worker is long at."""
        if self.chats:
            return CHAT, {"messages": USER, **self.endless}
        return "/v1/embeddings", {"input": LONG_TEXTS}


ENGINES = {
    each.name: each
    for each in (
        WorkerEngine(
            name="stub",
            apis=frozenset({*TEXT_APIS, "embeddings"}),
            slots=64,
            context=None,
            prompt_tokens=1,
            completion_tokens=len(SENTENCE.split()),
            whole=800 * len(SENTENCE.split()),
        ),
        WorkerEngine(name="ct2", slots=2, samples=frozenset({"repeat_penalty"})),
        WorkerEngine(
            name="exllamav3",
            slots=16,
            own_context=CONTEXT - 1,  # it keeps room for one token more
            samples=frozenset({"seed", "min_p", "repeat_penalty", "presence_penalty"}),
        ),
        WorkerEngine(
            name="llama_cpp",
            samples=frozenset({"seed", "min_p", "repeat_penalty", "presence_penalty"}),
            wild={"min_p": 0},
            endless={"max_tokens": 10_000, "logit_bias": {END: -1000}},
            whole=10_000,
        ),
        WorkerEngine(
            name="litert_lm",
            apis=frozenset({"chat"}),
            samples=frozenset({"seed", "repeat_penalty", "presence_penalty"}),
            wild={"top_k": 0},
            # The end is one token of 320, chosen at random: this seed's answer has 2,821 tokens, which take 2 s. In the
            # answers of some other seeds LiteRT-LM aborts (SIGABRT in its `Tasks::Decode`), so the seed is fixed.
            endless={"temperature": 1000, "top_k": 0, "top_p": 1, "seed": 579},
            whole=2800,
        ),
        WorkerEngine(name="llama_server", slots=2, own_surface=True),
        WorkerEngine(
            name="onnx",
            apis=frozenset({"embeddings"}),
            context=512,
            counts="prompt_tokens_total",
            whole=512 * len(LONG_TEXTS),
        ),
    )
}


def each_engine(holds: Callable[[WorkerEngine], object] = lambda engine: True) -> pytest.MarkDecorator:
    """Runs a test over the engines of which this holds, as its argument `engine`."""
    chosen = [
        pytest.param(engine, marks=[pytest.mark.embedded] if engine.name == "llama_server" else [], id=name)
        for name, engine in ENGINES.items()
        if holds(engine)
    ]
    return pytest.mark.parametrize("engine", chosen)


def needed(engine: str) -> None:
    """Skip, or fail where it is required, without the packages of an engine that may be missing."""
    if engine == "llama_cpp":
        available = importlib.util.find_spec("llama_cpp") is not None
        require("llama_cpp", available, "llama-cpp-python is not installed (extra `llama-cpp`)")
    if engine == "llama_server":
        available = importlib.util.find_spec("xllamacpp") is not None
        require("embedded", available, "xllamacpp is not installed (extra `embedded`)")


def start(engine: str, log: Path, *flags: str, token: str | None = None, env: dict[str, str] | None = None) -> Worker:
    """A worker of this engine; whoever starts it ends it. ExLlamaV3 and torch are fakes, save with another `env`."""
    needed(engine)
    port = free_port()
    variables = {"OMP_NUM_THREADS": "1"}
    if engine == "exllamav3":
        variables["PYTHONPATH"] = os.pathsep.join((str(_fakes(log.parent)), str(ROOT)))
    if engine == "llama_server":
        args: tuple[str, ...] = ("--", "--port", str(port), *LLAMA_SERVER_FLAGS, *flags)
        variables |= {"LLAMA_API_KEY": token} if token else {}
    else:
        args = ("--host", "127.0.0.1", "--port", str(port), "--served-name", "demo", *flags)
        variables |= {"ROUNDHOUSE_ENGINE_TOKEN": token} if token else {}
    return Worker(log, port, engine, *args, token=token, env={**variables, **(env or {})})


def load_error(engine: str, model: Path, *flags: str) -> str:
    """What an engine says, in this process, of a model that it cannot load."""
    listen = ("--host", "127.0.0.1", "--port", "1", "--served-name", "demo", "--model", str(model))
    module, args = parse_engine(engine, [*listen, *flags])
    with pytest.raises(LoadError) as raised:
        module.create(args).load_model()
    return str(raised.value)


def _fakes(folder: Path) -> Path:
    """Where ExLlamaV3 and torch are found."""
    site = folder / "fakes"
    if not site.exists():
        site.mkdir()
        for name in ("exllamav3", "torch"):
            (site / f"{name}.py").write_text(f"from tests.fakes.fake_{name} import *\n")
    return site


def write_engine_model(
    engine: str,
    path: Path,
    says: Sequence[Token] = (),
    template: str | None = CHAT_TEMPLATE,
    *,
    hidden: Collection[Token] = (),
    **how: Any,
) -> Path:
    """A model of this engine that says these tokens; without any, the demo model's sentence. As `make_ct2`, `make_hf`
    and `make_scripted_model` have it."""
    if engine == "llama_cpp":
        if says:
            make_scripted_model(path, says, template or "", hidden=hidden, **how)
        else:
            make_model(path, **how)
    else:
        (make_ct2 if engine == "ct2" else make_hf)(path, says, template, hidden=hidden, **how)
    return path


BOUNDED = {
    "ct2": ("--max-tokens", str(BOUND), "--compute-type", "int8"),
    "exllamav3": ("--max-rq-tokens", str(BOUND)),
    "llama_cpp": ("--n-ctx", str(BOUND)),
    "litert_lm": ("--max-tokens", str(BOUND)),
}


def plain_flags(engine: str, folder: Path) -> tuple[str, ...]:
    """Writes a model that says `SENTENCE`, or embeds: the flags that serve it."""
    return (*_demo_flags(engine, folder), *BOUNDED.get(engine, ()))


def _demo_flags(engine: str, folder: Path) -> tuple[str, ...]:
    if engine == "stub":
        return ("--text", SENTENCE)
    if engine == "litert_lm":
        return ("--model", str(litertlm("clockwork")), "--cache-dir", str(folder / "cache"))
    path = folder / "demo"
    if engine == "onnx":
        write_vocabulary(folder / "demo-vocab.txt")
        write_model(path.with_suffix(".onnx"))
        return ("--model", str(path.with_suffix(".onnx")), "--threads", "1")
    write_engine_model("llama_cpp" if engine == "llama_server" else engine, path)
    return ("--model", str(path))


def busy_flags(engine: str, folder: Path) -> tuple[str, ...]:
    """The same for one that is long at its `work`, and says `SENTENCE` again and again."""
    if engine == "stub":
        return ("--token-delay-ms", "20", "--text", " ".join([SENTENCE] * 800))
    if engine in ("ct2", "exllamav3"):
        model = str(write_engine_model(engine, folder / "endless", endless=True))
        return ("--model", model, *(("--inter-threads", "2", "--intra-threads", "1") if engine == "ct2" else ()))
    if engine == "llama_cpp":
        return (*_demo_flags(engine, folder), "--n-ctx", "16384")
    return _demo_flags(engine, folder)


class Fleet:
    """Workers that tests share, each started when it is first asked for, and again where a test ended it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._workers: dict[object, Worker] = {}
        self._flags: dict[object, tuple[str, ...]] = {}
        self._starts = 0

    def plain(self, engine: WorkerEngine) -> Worker:
        return self._shared(engine.name, "plain", plain_flags)

    def busy(self, engine: WorkerEngine) -> Worker:
        return self._shared(engine.name, "busy", busy_flags)

    def says(
        self, engine: str, says: Sequence[Token] = (), template: str | None = CHAT_TEMPLATE, *flags: str, **how: Any
    ) -> Worker:
        """Says these tokens; see `make_model`."""
        key = (tuple(says), template, flags, repr(how))

        def written(engine: str, folder: Path) -> tuple[str, ...]:
            return ("--model", str(write_engine_model(engine, folder / "says", says, template, **how)), *flags)

        return self._shared(engine, key, written)

    def litert_caller(self) -> Worker:
        """LiteRT-LM's model that thinks and calls; see `litertlm_model`."""

        def flags(engine: str, folder: Path) -> tuple[str, ...]:
            return ("--model", str(litertlm("caller")), "--cache-dir", str(folder / "cache"))

        return self._shared("litert_lm", "caller", flags)

    def _shared(self, engine: str, kind: object, write: Callable[[str, Path], tuple[str, ...]]) -> Worker:
        key = (engine, kind)
        if key not in self._flags:
            needed(engine)
            folder = self._folder / f"{engine}-{len(self._flags)}"
            folder.mkdir(exist_ok=True)  # there since a test that was skipped for want of its model
            self._flags[key] = write(engine, folder)
        if key not in self._workers or self._workers[key].process.poll() is not None:
            self._starts += 1
            log = self._folder / f"{engine}-{self._starts}.log"
            self._workers[key] = start(engine, log, *self._flags[key], token=TOKEN)
        return self._workers[key].ready()

    def close(self) -> None:
        for worker in self._workers.values():
            worker.__exit__()


@contextmanager
def fleet_in(folder: Path) -> Iterator[Fleet]:
    fleet = Fleet(folder)
    try:
        yield fleet
    finally:
        fleet.close()
