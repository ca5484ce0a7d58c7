"""What was predicted beside what is taken, after the load and after a prompt that fills the context."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.gpu.rig import Rig, mib_grown
from tests.gpu.step import Figures, Needs, Step, StepFailedError

MODEL: Final = "llama.gguf"
CONTEXTS: Final = {"4k": 4096, "32k": 32_768, "128k": 131_072}
CACHES: Final[Mapping[str, dict[str, str]]] = {
    "f16": {},
    "q8": {"llama_server_cache_type_k": "q8_0", "llama_server_cache_type_v": "q8_0"},
}
MOST_OVER: Final = 1.1
"""Times the forecast: one that is exceeded by more takes memory from its neighbours."""
MOST_OVER_MIB: Final = 64
CPU_PROMPT: Final = 4096
"""The longest prompt without a GPU: a longer one takes minutes."""
ANSWER: Final = 64
"""Tokens of the context that are left for the answer."""


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the table of forecasts."""

    cache: str
    context: str
    gpus: int = 1
    half_full: bool = False

    @property
    def name(self) -> str:
        """`forecast.f16.4k`, `forecast.f16.4k.two-gpus`."""
        more = (".two-gpus" if self.gpus > 1 else "") + (".half-full" if self.half_full else "")
        return f"forecast.{self.cache}.{self.context}{more}"

    @property
    def title(self) -> str:
        """In words."""
        where = "two GPUs" if self.gpus > 1 else "one GPU"
        more = (
            ", one of them half full" if self.half_full and self.gpus > 1 else ", half full" if self.half_full else ""
        )
        return f"Forecast against observed: {self.cache} cache, {self.context}, {where}{more}"


def measure(case: Case) -> Callable[[Rig], Awaitable[Figures]]:
    """The step of a case."""

    async def run(rig: Rig) -> Figures:
        name = case.name.removeprefix("forecast.").replace(".", "-")
        gpus = rig.uuids(case.gpus)
        if case.half_full:
            await rig.fill_gpu(gpus[0], mib=rig.gpu(gpus[0]).total_mib // 2)
        context = CONTEXTS[case.context]
        definition = rig.definition("llama-server", MODEL, gpus=gpus, llama_server_n_ctx=context, **CACHES[case.cache])
        await rig.declare({name: definition})
        return await compare_forecast(rig, name, None if rig.on_cpu and context > CPU_PROMPT else context - ANSWER)

    return run


async def compare_forecast(rig: Rig, name: str, prompt: int | None) -> Figures:
    """Load a declared model, send it a prompt of so many tokens (None: none), and hold what it takes against what was
    predicted. Raises StepFailedError where it takes more."""
    before = rig.used_mib(name)
    loaded = await rig.load(name)
    if loaded.source not in ("predicted", "declared"):
        raise StepFailedError(f"nothing was predicted: the estimate is {loaded.source}")
    after_load = mib_grown(before, rig.used_mib(name))
    figures: dict[str, Any] = {
        "predicted_mib": loaded.predicted_mib,
        "after_load_mib": sum(after_load.values()),
        "load_s": loaded.seconds,
    }
    observed = after_load
    if prompt is not None:
        status, body = await rig.complete(name, prompt)
        if status != 200:
            raise StepFailedError(f"a prompt of {prompt} tokens was refused: {body}", figures)
        observed = mib_grown(before, rig.used_mib(name))
        figures["after_prompt_mib"] = sum(observed.values())
    else:
        figures["after_prompt_mib"] = "not tried: too long without a GPU"
    if len(observed) > 1:
        figures["by_gpu_mib"] = observed
        start_claims = loaded.status.replicas[0].start_claims
        figures["claims_mib"] = {uuid: mib for uuid, mib in start_claims.items() if uuid in observed}
    most = max(figures["after_load_mib"], sum(observed.values()))
    figures["predicted_over_observed"] = loaded.predicted_mib / max(1, most)
    if problem := find_excess(loaded.predicted_mib, most):
        raise StepFailedError(problem, figures)
    await rig.unload(name)
    return {**figures, "released_s": await rig.released(before, name)}


def find_excess(predicted_mib: int, observed_mib: int) -> str | None:
    """What is wrong where more is taken than was predicted; None: nothing."""
    if observed_mib <= predicted_mib * MOST_OVER + MOST_OVER_MIB:
        return None
    return f"takes {observed_mib} MiB, and {predicted_mib} were predicted"


def _cases() -> list[Case]:
    single = [Case(cache, context) for cache in CACHES for context in CONTEXTS]
    double = [Case(cache, context, gpus=2) for cache in CACHES for context in CONTEXTS]
    return [*single, Case("f16", "32k", half_full=True), *double, Case("f16", "32k", gpus=2, half_full=True)]


STEPS = tuple(
    Step(
        case.name,
        case.title,
        Needs(gpus=case.gpus, on_cpu=case.gpus == 1 and not case.half_full, engine="llama-server", model=MODEL),
        measure(case),
    )
    for case in _cases()
)
