"""What a real llama-server and a real worker report of their configuration, compared with what is declared."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest

from controller.engines import ENGINES
from controller.engines.base import FigureGap
from controller.observe.prober import Prober, ProbeTarget
from controller.state import AppliedFigures, Health
from tests.support.installed_engines import Kind, needed, started
from tests.support.ports import free_port
from tests.support.wait import until
from tests.support.worker_process import Worker
from worker.clockwork import make_model

TOKEN = "replica-token"
TRAINED = 16_384


@contextlib.asynccontextmanager
async def figures_of(worker: Worker, backend: str, **fields: Any) -> AsyncIterator[AppliedFigures]:
    """The figures of a ready engine that a prober read."""
    engine = ENGINES[backend]
    definition = engine.definition.model_validate({"backend": backend, **fields})
    target = ProbeTarget(f"http://127.0.0.1:{worker.port}", engine.describe_probe(definition), TOKEN)
    async with aiohttp.ClientSession() as session:
        prober = Prober(session, interval_s=0.05, timeout_s=30, wake=lambda: None, clock=time.time)
        prober.track_targets({"m-0": target})
        try:
            await until("it is ready", lambda: prober.get_health("m-0").health is Health.READY)
            yield prober.get_health("m-0").figures
        finally:
            await prober.close()


@pytest.fixture(scope="module", params=[pytest.param("embedded", marks=pytest.mark.embedded), "binary"])
def llama_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """A llama-server with 4096 tokens in four slots, which speculates."""
    kind = cast("Kind", request.param)
    needed(kind)
    folder = tmp_path_factory.mktemp(kind)
    make_model(folder / "m.gguf", context=TRAINED)
    with started(kind, folder, "m", folder / "m.gguf", "--spec-type", "ngram-simple", token=TOKEN) as worker:
        yield worker.ready()


@pytest.mark.engines
@pytest.mark.parametrize(
    ("fields", "gaps"),
    [
        ({"llama_server_n_ctx": 4000, "target_inflight": 4, "llama_server_spec_type": "ngram-simple"}, ()),
        (
            {"llama_server_n_ctx": 8192, "target_inflight": 2},
            (
                FigureGap("llama_server_n_ctx", 8192, 4096),
                FigureGap("target_inflight", 2, 4),
                FigureGap("llama_server_spec_type", "none", "on"),
            ),
        ),
    ],
    ids=["applied", "otherwise"],
)
async def test_llama_server_reports_what_it_applies(
    llama_server: Worker, fields: dict[str, Any], gaps: tuple[FigureGap, ...]
) -> None:
    declared = {"model_path": "m.gguf", **fields}
    async with figures_of(llama_server, "llama_server", **declared) as figures:
        assert figures == AppliedFigures(context_length=4096, trained_context_length=TRAINED, slots=4, speculates=True)
        definition = ENGINES["llama_server"].definition.model_validate({"backend": "llama_server", **declared})
        assert ENGINES["llama_server"].compare_figures(definition, figures) == gaps


async def test_a_worker_reports_its_slots(tmp_path: Path) -> None:
    port = free_port()
    args = ("stub", "--host", "127.0.0.1", "--port", str(port), "--served-name", "m")
    with Worker(tmp_path / "log", port, *args, token=TOKEN, env={"ROUNDHOUSE_ENGINE_TOKEN": TOKEN}) as worker:
        async with figures_of(worker.ready(), "stub") as figures:
            assert figures == AppliedFigures(slots=figures.slots)
            assert figures.slots is not None
            assert ENGINES["stub"].target_inflight(ENGINES["stub"].definition(backend="stub")) <= figures.slots
