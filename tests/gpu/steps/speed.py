"""Tokens per second of an engine and through the gateway: by `vllm bench serve`, or by a small client of our own."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from tests.bench.load import close, connect, post_bytes
from tests.gpu.rig import Rig
from tests.gpu.step import Figures, Needs, Step, StepFailedError
from tests.support.installed_engines import ON_CPU

NAME: Final = "fast"
PROMPT, ANSWER = 128, 128
CPU_ANSWER: Final = 16
CLIENTS: Final[Mapping[int, int]] = {1: 8, 32: 256, 256: 768}
"""Clients at a time, to requests in all."""
CPU_CLIENTS: Final[Mapping[int, int]] = {1: 2, 4: 8}
ROUND_S: Final = 60.0
BENCH_KEYS: Final = ("completed", "failed", "output_throughput", "median_ttft_ms", "p99_ttft_ms")


@dataclass(frozen=True, slots=True)
class Place:
    """Where requests are sent: the engine itself, or the gateway before it."""

    name: str
    port: int
    key: str
    model: str


def measure_speed(engine: str, model: str, fields: Mapping[str, Any]) -> Callable[[Rig], Awaitable[Figures]]:
    """Directly and through the gateway, in turn, at each number of clients."""

    async def run(rig: Rig) -> Figures:
        rounds = CPU_CLIENTS if rig.on_cpu else CLIENTS
        more = ON_CPU if rig.on_cpu and engine == "vllm" else {}
        await rig.declare({NAME: rig.definition(engine, model, target_inflight=max(rounds), **fields, **more)})
        await rig.load(NAME)
        stack = await rig.open_stack()
        port, key = rig.engine_address(NAME)
        places = (Place("direct", port, key, NAME), Place("gateway", stack.port, "none", NAME))
        program = rig.host.programs.get("vllm") if engine == "vllm" else None
        client = Client(program, stack.models / model, CPU_ANSWER if rig.on_cpu else ANSWER)
        figures: dict[str, Any] = {}
        for place in places:
            await run_clients(place, 1, 1, CPU_ANSWER)  # an engine's first answer takes longer
        for turn, (clients, requests) in enumerate(rounds.items()):
            for place in places if turn % 2 == 0 else places[::-1]:
                each = f"{place.name}.{clients}"
                try:
                    async with asyncio.timeout(ROUND_S):
                        figures[each] = await client.measure(place, clients, requests)
                except TimeoutError:
                    raise StepFailedError(f"{each}: no end within {ROUND_S:g} s", figures) from None
                except (OSError, RuntimeError) as error:
                    raise StepFailedError(f"{each}: {error}"[:600], figures) from error
            rates = [figures[f"{place.name}.{clients}"]["tokens_per_s"] for place in places]
            figures[f"ratio.{clients}"] = rates[1] / rates[0]
        return {"client": "our own" if client.program is None else "vllm bench serve", **figures, **client.told}

    return run


class Client:
    """`vllm bench serve` by `program`; our own client where that is None, and from the first time that it fails."""

    def __init__(self, program: Path | None, model: Path, answer: int) -> None:
        self.program = program
        self.told: dict[str, str] = {}
        """Why `vllm bench serve` was given up; empty: it was not."""
        self._model, self._answer = model, answer
        self._rounds = itertools.count(1)

    async def measure(self, place: Place, clients: int, requests: int) -> Figures:
        """One round, whose prompts no other round has: whoever is measured second finds none in a cache. Raises
        RuntimeError for an answer that is not 200, ConnectionError where one breaks off."""
        number = next(self._rounds)
        if self.program is not None:
            try:
                return await run_bench(self.program, place, (clients, requests, self._answer, number), self._model)
            except (OSError, RuntimeError) as error:
                self.program, self.told = None, {"vllm_bench": str(error)[:400]}
        return await run_clients(place, clients, requests, self._answer, number)


async def run_clients(place: Place, clients: int, requests: int, answer: int, round_number: int = 0) -> Figures:
    """A closed loop: so many clients, each with one stream at a time. Every prompt of every round is another one, so
    that none is in a cache. Raises RuntimeError for an answer that is not 200, ConnectionError where one breaks off."""
    numbers, first_s = itertools.count(), []

    async def work() -> None:
        while (number := next(numbers)) < requests:
            prompt = _prompt(number, round_number)
            fields = {"model": place.model, "prompt": prompt, "max_tokens": answer, "temperature": 0}
            request = post_bytes(place.port, place.key, "/v1/completions", **fields, ignore_eos=True, stream=True)
            # A connection for each: llama-server closes it after a stream.
            [connection] = opened = await connect(place.port, 1)
            try:
                started = time.perf_counter()
                await connection.ask(request)
                first_s.append(connection.first_event_at - started)
            finally:
                close(opened)

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(clients)))
    seconds = time.perf_counter() - began
    return {"tokens_per_s": requests * answer / seconds, "ttft_p50_ms": median(first_s) * 1000}


def _prompt(number: int, round_number: int) -> list[int]:
    numbered = (100 + (number * 7919 + each * each) % 1000 for each in range(1, PROMPT))
    return [100 + round_number % 1000, *numbered]


async def run_bench(program: Path, place: Place, load: tuple[int, int, int, int], model: Path) -> Figures:
    """One round of vLLM's own load test. `load`: clients, requests in all, tokens of an answer, seed. Raises
    RuntimeError where it fails, or a request of its."""
    with tempfile.TemporaryDirectory() as folder:
        argv = bench_arguments(program, place, load, model, Path(folder))
        env = os.environ | {"OPENAI_API_KEY": place.key, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        pipe, off = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(
            *argv, env=env, stdin=off, stdout=pipe, stderr=asyncio.subprocess.STDOUT
        )
        try:
            output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        found = list(Path(folder).glob("*.json"))
        if process.returncode or not found:
            raise RuntimeError(f"vllm bench serve ended with {process.returncode}: {output.decode()[-400:]}")
        return read_bench(json.loads(found[0].read_text()))


def bench_arguments(
    program: Path, place: Place, load: tuple[int, int, int, int], model: Path, folder: Path
) -> Sequence[str]:
    """The command line of `vllm bench serve`, which writes its result into `folder`."""
    clients, requests, answer, seed = load
    return (
        *(str(program), "bench", "serve", "--backend", "openai", "--base-url", f"http://127.0.0.1:{place.port}"),
        *("--endpoint", "/v1/completions", "--model", place.model, "--tokenizer", str(model)),
        *("--dataset-name", "random", "--random-input-len", str(PROMPT), "--random-output-len", str(answer)),
        *("--ignore-eos", "--temperature", "0", "--num-prompts", str(requests), "--max-concurrency", str(clients)),
        *("--seed", str(seed), "--disable-tqdm", "--save-result", "--result-dir", str(folder)),
    )


def read_bench(result: Mapping[str, Any]) -> Figures:
    """The figures of a result of `vllm bench serve`. Raises RuntimeError where a request failed."""
    figures = {key: result[key] for key in BENCH_KEYS if key in result}
    if figures.get("failed") or not figures.get("completed"):
        raise RuntimeError(f"vllm bench serve: requests failed: {figures}")
    return {"tokens_per_s": figures["output_throughput"], "ttft_p50_ms": figures.get("median_ttft_ms")}


STEPS = (
    Step(
        "speed.vllm",
        "vLLM: tokens per second directly and through the gateway, 1, 32 and 256 clients",
        Needs(engine="vllm", model="llama-hf", on_cpu=True, is_long=True, processes=True),
        measure_speed("vllm", "llama-hf", {"vllm_max_model_len": 1024, "start_timeout_s": 480}),
        limit_s=420,
    ),
    Step(
        "speed.llama",
        "llama-server: tokens per second directly and through the gateway",
        Needs(engine="llama-server", model="llama.gguf", on_cpu=True, processes=True),
        measure_speed("llama-server", "llama.gguf", {"llama_server_n_ctx": 65_536}),
        limit_s=300,
    ),
)
