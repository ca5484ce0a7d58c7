"""GET /v1/models/{model}/status, and POST and GET /v1/models/{model}/benchmark.

A name may hold slashes. Where a model is declared whose whole name is `x/status` or `x/benchmark`, GET answers that
model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Final, Literal

from fastapi import Body, FastAPI, Path, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from controller.schema.errors import RoundhouseError
from controller.schema.routing import ModelRoute
from controller.schema.status import ModelState
from gateway.api.deadline import Lifetime
from gateway.api.declare import ANY_OTHER, INGRESS_CODES, codes_paragraph, error_responses
from gateway.api.models import ModelObject
from gateway.exchange.inner_requests import InnerRequests
from gateway.exchange.speed_test import Measurement, SpeedTest
from gateway.ingress.route_access import require_access
from gateway.routing.availability import find_model, reason_of
from gateway.routing.live_routes import LiveRoutes
from gateway.routing.model_events import ModelView
from gateway.server.asgi import ClientGoneError
from gateway.storage.benchmark_results import BenchmarkResults

_MODEL_CODES: Final = ("unknown_model", "model_not_allowed", "scope_required", *INGRESS_CODES)
_RUN_CODES: Final = ("invalid_request", "model_not_loaded", "model_loading", "model_failed", "not_supported")

_Name = Annotated[str, Path(description="Name or alias of the model; it may contain `/` and `:`.")]
StatusWord = Literal["available", "downloadable", "downloading", "unavailable"]
_STATUS: Final[dict[ModelState, tuple[int, StatusWord]]] = {
    ModelState.LOADED: (3, "available"),
    ModelState.LOADING: (1, "downloading"),
    ModelState.UNLOADING: (0, "unavailable"),
    ModelState.UNLOADED: (0, "unavailable"),
    ModelState.FAILED: (0, "unavailable"),
}
_ON_DEMAND: Final[tuple[int, StatusWord]] = (2, "downloadable")


class ModelReadiness(BaseModel):
    """Whether a model can be used now: `status_code` and `status` in the words of Android's AICore, `state` in
    Roundhouse's own."""

    model_id: str
    status_code: int = Field(
        description="3: available. 2: downloadable, that is a request loads it. 1: downloading, that is it loads. 0: "
        "unavailable."
    )
    status: StatusWord
    available: bool
    state: ModelState
    reason: str | None = Field(description="Why it is not available; null: it is, or no reason is known.")


class BenchmarkRequest(BaseModel):
    """What a benchmark measures. Fields that are not listed are refused, and values of another type are not
    converted."""

    model_config = ConfigDict(extra="forbid", strict=True)

    prompts: list[Annotated[str, Field(min_length=1, max_length=100_000)]] = Field(
        default=["Say hi.", "Count to ten."], min_length=1, max_length=100
    )
    warmup: int = Field(1, description="Answers to the first prompt that do not count; 0 to 5, others are clamped.")
    max_tokens: int = Field(128, ge=1, le=32_768, description="Most tokens of each answer.")


class BenchmarkRun(BaseModel):
    """Measurement of one answer to one prompt. `tokens_per_sec` is `output_tokens` over the whole of `inference_ms`.
    For an answer without text, `ttft_ms` is the time until its end."""

    prompt: str
    output_tokens: int
    inference_ms: int = Field(description="From the request to the end of the answer, waiting included.")
    tokens_per_sec: float
    ttft_ms: int = Field(description="Until the first text.")


class BenchmarkResult(BaseModel):
    """Result of a benchmark of one model. `results` has one run for each prompt, in their order, and the totals are the
    sums of these. `warmup_runs` answers came before them, and count in nothing."""

    model_id: str
    status: Literal["available"] = "available"
    warmup_runs: int
    results: list[BenchmarkRun]
    total_tokens: int
    total_ms: int
    avg_tokens_per_sec: float = Field(description="Mean of the results' `tokens_per_sec`.")


def describe_readiness(route: ModelRoute) -> ModelReadiness:
    """Return the readiness of the model by its state in the routing table; its engine is not asked.

    An unloaded model is `downloadable` if it is `autoload`, else `unavailable`. A model that is not loaded has as
    `reason` its last error, without network addresses and file paths, or, without an error, the reason of its state;
    None: neither is known.
    """
    code, word = _STATUS[route.state]
    if route.state is ModelState.UNLOADED and route.autoload:
        code, word = _ON_DEMAND
    is_available = route.state is ModelState.LOADED
    return ModelReadiness(
        model_id=route.name,
        status_code=code,
        status=word,
        available=is_available,
        state=route.state,
        reason=reason_of(route),
    )


def summarize_runs(model: str, warmup: int, runs: Sequence[Measurement]) -> BenchmarkResult:
    """Return the result of a benchmark whose counted runs, without warm-up, are `runs`; there must be at least one.

    Times are rounded to milliseconds and speeds to one decimal. `warmup`: number of answers that were not counted.
    """
    results = [
        BenchmarkRun(
            prompt=run.prompt,
            output_tokens=run.output_tokens,
            inference_ms=round(1000 * run.total_s),
            tokens_per_sec=round(run.tokens_per_sec, 1),
            ttft_ms=round(1000 * run.ttft_s),
        )
        for run in runs
    ]
    return BenchmarkResult(
        model_id=model,
        warmup_runs=warmup,
        results=results,
        total_tokens=sum(run.output_tokens for run in runs),
        total_ms=round(1000 * sum(run.total_s for run in runs)),
        avg_tokens_per_sec=round(sum(run.tokens_per_sec for run in runs) / len(runs), 1),
    )


class Benchmarks:
    """Measures models on behalf of clients, and keeps the last result of each model in `BenchmarkResults`, over
    restarts. One object serves all requests of the gateway."""

    def __init__(self, requests: InnerRequests, results: BenchmarkResults) -> None:
        self._requests = requests
        self._results = results

    def find_result(self, route: ModelRoute) -> BenchmarkResult:
        """Return the last kept result of the model, also one of an earlier start of the gateway.

        Raises:
            RoundhouseError: `benchmark_not_found` if none is kept: the model was never measured with success, or 1000
                others were measured later, or another version of the gateway kept it in another form.
        """
        result = self._results.find_result(route.name)
        not_found = RoundhouseError(
            "benchmark_not_found", f"No benchmark of {route.name!r} was run yet.", param="model"
        )
        if result is None:
            raise not_found
        try:
            return BenchmarkResult.model_validate(result)
        except ValidationError:
            raise not_found from None

    async def measure(self, request: Request, route: ModelRoute, wanted: BenchmarkRequest) -> BenchmarkResult:
        """Send the prompts of `wanted` to the model one after the other, keep the result, and return it.

        The requests wait in the queue, and load the model, as requests of clients do; the benchmark as a whole has no
        time limit. `warmup` is clamped to 0 to 5. After an error nothing is kept. `request`: of the client, who must be
        authorized for the model.

        Raises:
            RoundhouseError: the first error that the model answered; `not_supported`: the model makes no text;
                `request_timeout`: the client left, which ends the benchmark.
        """
        warmup = min(5, max(0, wanted.warmup))
        test = SpeedTest(self._requests, request.headers.raw, request.state.caller)
        try:
            with Lifetime(None) as lifetime:
                lifetime.watch_client(request.receive, lambda: False)
                runs = await test.measure(route, wanted.prompts, warmup, wanted.max_tokens)
        except ClientGoneError:
            raise RoundhouseError("request_timeout", "The client left during the benchmark.") from None
        result = summarize_runs(route.name, warmup, runs)
        await asyncio.to_thread(self._results.save_result, route.name, result.model_dump())
        return result


def declare(app: FastAPI, live: LiveRoutes, benchmarks: Benchmarks) -> None:
    """Add `GET /v1/models/{name}/status`, and `GET` and `POST` of `/v1/models/{name}/benchmark`, to `app`.

    Call before `models.declare`, whose route matches everything below /v1/models/.
    """

    def find_visible(request: Request, name: str) -> ModelRoute:
        route = find_model(live.current, name)
        request.state.caller.require_model(route)
        return route

    def find_whole(request: Request, name: str) -> ModelObject | None:
        is_declared = name in live.current.names
        return ModelObject.of(ModelView(find_visible(request, name))) if is_declared else None

    @app.get(
        "/v1/models/{name:path}/status",
        summary="Whether a model is ready",
        description=f"The model's state.\n\n{codes_paragraph(_MODEL_CODES)}",
        tags=["models"],
        responses=error_responses(*_MODEL_CODES) | ANY_OTHER,
    )
    @require_access("inference")
    async def get_status(request: Request, name: _Name) -> ModelReadiness | ModelObject:
        return find_whole(request, f"{name}/status") or describe_readiness(find_visible(request, name))

    @app.get(
        "/v1/models/{name:path}/benchmark",
        summary="The last benchmark of a model",
        description="Kept over restarts.\n\n" + codes_paragraph(("benchmark_not_found", *_MODEL_CODES)),
        tags=["models"],
        responses=error_responses("benchmark_not_found", *_MODEL_CODES) | ANY_OTHER,
    )
    @require_access("inference")
    async def get_benchmark(request: Request, name: _Name) -> BenchmarkResult | ModelObject:
        if (whole := find_whole(request, f"{name}/benchmark")) is not None:
            return whole
        return benchmarks.find_result(find_visible(request, name))

    @app.post(
        "/v1/models/{name:path}/benchmark",
        summary="Measure a model's speed",
        description="Asks the prompts one after the other, beside other requests, and keeps the result. It counts as "
        "one request for the key's limits.\n\n" + codes_paragraph((*_RUN_CODES, *_MODEL_CODES)),
        tags=["models"],
        responses=error_responses(*_RUN_CODES, *_MODEL_CODES) | ANY_OTHER,
    )
    @require_access("inference")
    async def run_benchmark(
        request: Request,
        name: _Name,
        wanted: Annotated[BenchmarkRequest | None, Body()] = None,
    ) -> BenchmarkResult:
        return await benchmarks.measure(request, find_visible(request, name), wanted or BenchmarkRequest())
