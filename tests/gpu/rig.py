"""What steps work with: a whole Roundhouse on the real engines, models, and readings of memory from outside of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import psutil

from contract.status import ModelState, ModelStatus
from controller.hosts import Gpu
from tests.gpu import cuda_devices
from tests.gpu.host import ENGINE_IMAGES, Host, read_gpus
from tests.gpu.models import LARGE, SMALL, TINY, Shape, link_model, make_model_once
from tests.gpu.step import Available, NotTriedError, StepFailedError
from tests.support.admin import AdminApi
from tests.support.roundhouse_stack import RoundhouseStack
from tests.support.wait import until

MIB: Final = 2**20
LOAD_S: Final = 500.0
RELEASE_S: Final = 60.0
SLACK_MIB: Final = 64
"""By which a GPU's use may differ from what it was, and still count as the same."""
MAIN_MEMORY: Final = "main memory"
KEY_VARIABLES: Final = ("VLLM_API_KEY", "LLAMA_API_KEY", "ROUNDHOUSE_ENGINE_TOKEN")
"""Where engines find the key that they ask for."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A load that went well."""

    seconds: float
    predicted_mib: int
    """Of the replica, on all its GPUs, or in main memory."""
    source: str
    status: ModelStatus


@dataclass(slots=True)
class Streamed:
    """What a client saw of a streamed answer. `error`: what it was told instead of the end; None: nothing."""

    text: str = ""
    first_s: float | None = None
    """Seconds to the first token; None: none came."""
    is_whole: bool = False
    error: str | None = None

    def read_line(self, line: bytes, at_s: float) -> None:
        """Take one line of the stream, which came `at_s` seconds after the request."""
        data = line.removeprefix(b"data: ").strip()
        if not line.startswith(b"data: "):
            return
        if data == b"[DONE]":
            self.is_whole = True
            return
        event = json.loads(data)
        if "error" in event:
            self.error = json.dumps(event["error"])[:300]
        elif event.get("choices"):
            self.first_s = at_s if self.first_s is None else self.first_s
            self.text += event["choices"][0].get("text") or ""


class Rig:
    """One walk's place. The first step that needs a Roundhouse starts it, and later steps share it."""

    def __init__(self, host: Host, folder: Path) -> None:
        self.host = host
        self.folder = folder
        self._stack: RoundhouseStack | None = None
        self._declared: dict[str, Any] = {}
        self._cleanup = contextlib.AsyncExitStack()

    @property
    def available(self) -> Available:
        """What the host has."""
        return self.host.available

    @property
    def on_cpu(self) -> bool:
        """Whether the walk leaves the GPUs alone."""
        return self.host.on_cpu

    @property
    def main_memory_mib(self) -> int:
        """What engines without GPUs may claim: more than any step does, whatever the machine has."""
        return 100_000

    @property
    def shape(self) -> Shape:
        """Of the models: large enough to be told from a context of CUDA."""
        if self.on_cpu:
            return TINY if self.host.is_small else SMALL
        return SMALL if self.host.is_small else LARGE

    # A whole Roundhouse.

    async def prepare(self, model: str | None) -> None:
        """Make a model, where a step needs one."""
        if model is None:
            return
        try:
            source = await asyncio.to_thread(make_model_once, self.folder / "models", model, self.shape)
        except (ImportError, OSError) as error:
            raise NotTriedError(f"the model {model} cannot be made here: {error}") from error
        stack = await self.open_stack()
        link_model(source, stack.models / model)

    async def open_stack(self) -> RoundhouseStack:
        """The Roundhouse, running and without a model."""
        if self._stack is None:
            root = Path(tempfile.mkdtemp(prefix="rh", dir=self.folder))  # models are linked, so on the same disk
            root.chmod(0o755)
            if len(str(root)) > 80:
                # A Unix socket's path has 108 bytes at most.
                raise NotTriedError(f"the path of {self.folder} is too long: name a shorter --folder")
            stack = RoundhouseStack(root / "s", self.host.runtime, self._settings())
            (stack.state / "cache").parent.mkdir(exist_ok=True)
            cache = self.folder / "cache"
            cache.mkdir(exist_ok=True)
            if self.host.runtime == "process":
                (stack.state / "cache").symlink_to(cache)
            stack.declare({})
            self._stack = stack
            await stack.open()
        return self._stack

    def _settings(self) -> dict[str, str]:
        settings = {"ROUNDHOUSE_PROBE_INTERVAL_S": "0.5", "ROUNDHOUSE_RESYNC_S": "1"}
        if self.on_cpu:
            settings["ROUNDHOUSE_ENGINES_MEMORY_MIB"] = str(self.main_memory_mib)
        if self.host.runtime == "docker":
            names = {"llama-server": "LLAMA_SERVER", "worker": "WORKER", "vllm": "VLLM", "controller": "CONTROLLER"}
            settings |= {f"ROUNDHOUSE_IMAGE_{name}": self.host.images[kind] for kind, name in names.items()}
            settings["ROUNDHOUSE_ENGINES_NETWORK"] = "rhgpu_engines"
        return settings

    async def settle(self) -> None:
        """End what a step has started: programs of its own, then every engine. A Roundhouse that does not end its
        engines is closed, so that the next step gets a new one."""
        await self._cleanup.aclose()
        self._cleanup = contextlib.AsyncExitStack()
        if self._stack is None:
            return
        stack = self._stack
        try:
            # A model that vanishes from the files stays for some seconds; one that is unloaded is gone at once.
            async with self.admin() as admin:
                for model in (await stack.status()).models:
                    if model.state is not ModelState.UNLOADED:
                        await admin.unload(model.name, wait=False)

            async def is_empty() -> bool:
                models = (await stack.status()).models
                return all(model.state is ModelState.UNLOADED and not model.replicas for model in models)

            await until("every engine has ended", is_empty)
        except Exception:
            await self.close()
            raise

    async def close(self) -> None:
        """End the Roundhouse and its engines, and remove its folders. The models stay."""
        await self._cleanup.aclose()
        stack, self._stack, self._declared = self._stack, None, {}
        if stack is not None:
            try:
                await stack.close()
            finally:
                shutil.rmtree(stack.root.parent, ignore_errors=True)

    # Models.

    def definition(self, engine: str, model: str, *, gpus: Sequence[str] = (), **fields: Any) -> dict[str, Any]:
        """A model that is not loaded by itself, on these GPUs; without any on the first one, or on the CPU."""
        base: dict[str, Any] = {"model_path": model, "enabled": False}
        program = self.host.programs.get(engine)
        as_process = self.host.runtime == "process"
        if engine == "llama-server":
            base |= {"backend": "llama_server"} | ({"llama_server_binary": str(program)} if as_process else {})
        elif engine == "vllm":
            base |= {"backend": "vllm_serve"} | ({"vllm_serve_binary": str(program)} if as_process else {})
        else:
            base |= {"backend": "exllamav3"}
        if not as_process:
            base["image"] = self.host.images[ENGINE_IMAGES[engine]]
        if self.on_cpu:
            base |= {"llama_server_threads": 1} if engine == "llama-server" else {}
        else:
            base["gpus"] = list(gpus or self.uuids(1))
        return base | fields

    def uuids(self, count: int) -> list[str]:
        """The first GPUs, those with the most memory first."""
        gpus = sorted(self.host.gpus, key=lambda gpu: (-gpu.total_mib, gpu.index))
        return [gpu.uuid for gpu in gpus[:count]]

    def gpu(self, uuid: str) -> Gpu:
        """A GPU as it was when the walk began."""
        return next(gpu for gpu in self.host.gpus if gpu.uuid == uuid)

    async def declare(self, models: Mapping[str, Any]) -> RoundhouseStack:
        """Declare these models beside those of earlier steps, which are unloaded, and wait until they are known."""
        stack = await self.open_stack()
        self._declared |= models
        stack.declare(self._declared)
        generation = (await stack.status()).generation

        async def are_known() -> bool:
            status = await stack.status()
            if status.desired_problems:
                raise StepFailedError(f"the definition is refused: {status.desired_problems[0]}")
            return status.generation > generation and {model.name for model in status.models} >= set(models)

        await until("the models are known", are_known)
        return stack

    @contextlib.asynccontextmanager
    async def admin(self) -> AsyncIterator[AdminApi]:
        """The admin API, patient."""
        async with AdminApi((await self.open_stack()).url) as admin:
            admin.session._timeout = aiohttp.ClientTimeout(total=LOAD_S)
            yield admin

    async def load(self, name: str) -> Loaded:
        """Load a declared model. Raises StepFailedError with its own reason, NotTriedError where it does not fit."""
        async with self.admin() as admin:
            row = (await admin.request("GET", f"models/{name}")).body
        predicted, source = int(row["vram_estimate_mib"] or 0), str(row["vram_estimate_source"])
        began = time.monotonic()
        await self.begin_load(name)
        status = await self.status_where(name, _is_settled, "loaded or failed")
        if status.state is not ModelState.LOADED:
            if status.blocked and not status.last_error:
                raise NotTriedError(f"{name} has no room: {status.blocked[0]}")
            raise StepFailedError(f"{name} does not load: {status.last_error}\n{self.engine_log(name)[-1500:]}")
        return Loaded(time.monotonic() - began, predicted, source, status)

    async def status_where(self, name: str, holds: Callable[[ModelStatus], bool], what: str) -> ModelStatus:
        """A model's status once it is as wanted. Raises StepFailedError when it does not come to be."""
        stack = await self.open_stack()

        async def look() -> ModelStatus | None:
            model = await stack.model(name)
            return model if model is not None and holds(model) else None

        try:
            found: ModelStatus = await until(what, look, LOAD_S)
        except AssertionError:
            seen = await stack.model(name)
            state, error = (seen.state, seen.last_error) if seen is not None else ("unknown", None)
            raise StepFailedError(f"{name} is not {what} within {LOAD_S:g} s, but {state}: {error}") from None
        return found

    async def begin_load(self, name: str) -> None:
        """Ask for a load, and do not wait for it."""
        async with self.admin() as admin:
            answer = await admin.load(name, wait=False)
            if answer.status >= 400:
                raise StepFailedError(f"{name} cannot be loaded: {answer.body}")

    async def unload(self, name: str) -> None:
        """Unload a model, and wait until it is gone."""
        async with self.admin() as admin:
            await admin.unload(name, wait=False)
        await self.status_where(name, lambda model: model.state is ModelState.UNLOADED, "unloaded")

    async def complete(self, name: str, tokens: int, limit_s: float = 400.0) -> tuple[int, dict[str, Any]]:
        """The answer to a prompt of so many tokens: its status and its body. Raises StepFailedError when none comes."""
        stack = await self.open_stack()
        body = {"model": name, "prompt": [100 + number % 100 for number in range(tokens)], "max_tokens": 4}
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=limit_s)) as session,
                session.post(f"{stack.url}/v1/completions", json=body) as answer,
            ):
                return answer.status, await answer.json()
        except TimeoutError:
            raise StepFailedError(f"no answer to a prompt of {tokens} tokens within {limit_s:g} s") from None

    async def stream(self, name: str, tokens: int, *, prompt: int = 32, begun: asyncio.Event | None = None) -> Streamed:
        """One streamed answer of so many greedy tokens. `begun` is set by its first token. Whatever happens to it is
        in the result."""
        stack = await self.open_stack()
        body = {
            "model": name,
            "prompt": [100 + number % 100 for number in range(prompt)],
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        streamed, started = Streamed(), time.monotonic()
        timeout = aiohttp.ClientTimeout(total=LOAD_S)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, read_bufsize=2**20) as session,
                session.post(f"{stack.url}/v1/completions", json=body) as answer,
            ):
                if answer.status != 200:
                    streamed.error = f"{answer.status}: {(await answer.text())[:300]}"
                    return streamed
                async for line in answer.content:
                    streamed.read_line(line, time.monotonic() - started)
                    if begun is not None and streamed.first_s is not None:
                        begun.set()
        except (aiohttp.ClientError, TimeoutError) as error:
            streamed.error = f"{type(error).__name__}: {error}"
        return streamed

    async def failures(self, name: str) -> list[str]:
        """Why a model's engines ended or did not start, the newest first."""
        async with self.admin() as admin:
            entries = (await admin.request("GET", "history", model=name, kind="failure")).body["entries"]
        return [str(entry["message"]) for entry in entries]

    def engine_log(self, name: str) -> str:
        """What the engines of a model have written, those that are gone too; empty for containers."""
        if self._stack is None:
            return ""
        logs = (self._stack.state / "logs").rglob(f"*-{name}-*.log")
        return "\n".join(path.read_text(errors="replace") for path in sorted(logs))

    # Engines from outside.

    def engine_pids(self, name: str) -> list[int]:
        """The processes of a model's replicas, each leader before its children."""
        assert self._stack is not None
        pids = []
        for path in (self._stack.state / "replicas").glob("*.json"):
            record = json.loads(path.read_text())
            if record["model"] == name and record["pid"] is not None:
                with contextlib.suppress(psutil.NoSuchProcess):
                    leader = psutil.Process(record["pid"])
                    pids += [leader.pid, *(child.pid for child in leader.children(recursive=True))]
        return pids

    def engine_address(self, name: str) -> tuple[int, str]:
        """The port of a model's engine, on loopback, and the key that it asks for. Raises NotTriedError where this user
        cannot read it."""
        assert self._stack is not None
        [record] = (
            record
            for path in (self._stack.state / "replicas").glob("*.json")
            if (record := json.loads(path.read_text()))["model"] == name and record["pid"] is not None
        )
        try:
            environment = psutil.Process(record["pid"]).environ()
        except psutil.Error as error:
            raise NotTriedError(f"the engine's key cannot be read: {error}") from error
        keys = (environment[key] for key in KEY_VARIABLES if key in environment)
        return int(record["port"]), next(keys, "")

    def used_mib(self, name: str = "") -> dict[str, int]:
        """What is in use of each GPU, by anybody; on the CPU: what the model's processes hold of main memory. Raises
        StepFailedError where a GPU cannot be read any more."""
        if not self.on_cpu:
            used = {gpu.uuid: gpu.used_mib for gpu in read_gpus()}
            if missing := {gpu.uuid for gpu in self.host.gpus} - used.keys():
                raise StepFailedError(f"GPUs cannot be read any more: {sorted(missing)}")
            return used
        return {MAIN_MEMORY: _held_bytes(self.engine_pids(name) if name else ()) // MIB}

    async def released(self, baseline: Mapping[str, int], name: str = "") -> float:
        """Seconds until no more is in use than before. Raises StepFailedError when that does not come to be."""
        began = time.monotonic()

        def is_free() -> bool:
            used = self.used_mib(name)
            return all(used.get(uuid, 0) <= mib + SLACK_MIB for uuid, mib in baseline.items())

        try:
            await until("memory is free", is_free, RELEASE_S)
        except AssertionError:
            raise StepFailedError(f"memory is still in use: {self.used_mib(name)}, before: {dict(baseline)}") from None
        return time.monotonic() - began

    async def fill_gpu(self, uuid: str, *, mib: int | None = None, leave: int = 0) -> Ballast:
        """Take memory of a GPU, or all but `leave` MiB, until the step ends or the ballast is dropped."""
        program = [sys.executable, str(Path(cuda_devices.__file__)), "--hold", uuid, "--leave", str(leave)]
        ballast = Ballast(program + ([] if mib is None else ["--mib", str(mib)]))
        self._cleanup.callback(ballast.drop)
        answer = await asyncio.to_thread(ballast.read)
        if "error" in answer:
            raise StepFailedError(f"GPU {uuid} cannot be filled: {answer['error']}")
        return ballast


class Ballast:
    """A process that holds memory of a GPU."""

    def __init__(self, program: Sequence[str]) -> None:
        self._process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def read(self) -> dict[str, Any]:
        """What it says: how many bytes it holds, or why none."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "its process ended"}
        return answer

    def drop(self) -> None:
        """Give the memory back."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def _is_settled(model: ModelStatus) -> bool:
    if model.state is ModelState.LOADED:
        return all(replica.phase == "ready" for replica in model.replicas)
    # Other reasons pass: a turn that is waited for, a preflight.
    return model.state is ModelState.FAILED or any("needs " in reason for reason in model.blocked)


def mib_grown(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """By how much more is in use."""
    return {name: after[name] - before.get(name, 0) for name in after}


def _held_bytes(pids: Sequence[int]) -> int:
    """What the processes have mapped; shared parts count once."""
    held = 0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            held += psutil.Process(pid).memory_full_info().pss
    return held
