"""Whether a model can be used, and how fast it is: `/v1/models/{model}/status` and `/benchmark`, `/v1/aicore/*`, and
`POST /health/warm`.

A name may hold slashes. Where a model is declared whose whole name is `x/status` or `x/benchmark`, GET answers that
model.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from fastapi import Body, Query, Request, Response
from fastapi import Path as PathParameter
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from common.atomic_write import write_atomic
from contract.errors import RoundhouseError
from contract.route_spec import RouteSpec
from contract.routing import ModelRoute
from contract.status import ModelState
from gateway.api.declare import HttpRoutes
from gateway.api.forwarding import DeadlineError, Lifetime
from gateway.api.models import ModelObject
from gateway.control.remote_prober import AicoreProbe, AicoreStatus, find_aicore
from gateway.exchange.inner_requests import InnerAnswer, InnerRequests
from gateway.exchange.speed_test import Measurement, SpeedTest, probe_request
from gateway.protocols.common.json_bytes import json_bytes
from gateway.routing.availability import find_model, reason_of
from gateway.routing.model_events import ModelView
from gateway.routing.table import LiveRoutes, Routes
from gateway.server.asgi import ClientGoneError

logger = logging.getLogger(__name__)

FILE_NAME: Final = "benchmarks.json"
MOST_MODELS: Final = 1000
"""Models whose result is kept; the one that was measured longest ago goes first."""


class BenchmarkResults:
    """Results of benchmarks by model, in memory and in a file, of the `MOST_MODELS` models that were measured last.

    Where the file cannot be read, it begins empty; where it cannot be written, the results stay in memory. Either is
    logged as a warning, and not raised. Safe for threads.
    """

    def __init__(self, state: Path) -> None:
        """`state`: the state folder. The file is read at once."""
        self._path = state / FILE_NAME
        self._results = self._read_file()
        self._lock = threading.Lock()
        """Held while the results are replaced and written."""

    def find_result(self, model: str) -> dict[str, Any] | None:
        """Return the fields of the model's last result, as `save_result` got them; None: none is kept. Do not change
        them. `model`: the model's own name."""
        return self._results.get(model)

    def save_result(self, model: str, result: dict[str, Any]) -> None:
        """Keep `result`, a JSON object, as the last one of the model, and write the file before the return. Blocks.

        Beyond `MOST_MODELS`, the result of the model that was measured longest ago is dropped. A file that cannot be
        written is logged as a warning; nothing is raised.
        """
        with self._lock:
            others = [(name, each) for name, each in self._results.items() if name != model]
            self._results = dict([*others, (model, result)][-MOST_MODELS:])
            try:
                write_atomic(self._path, json.dumps(self._results).encode(), durable=False)
            except OSError as error:
                logger.warning("the results of benchmarks cannot be written to %s: %s", self._path, error)

    def _read_file(self) -> dict[str, dict[str, Any]]:
        try:
            results = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            logger.warning("the results of benchmarks in %s cannot be read: %s", self._path, error)
            return {}
        if not isinstance(results, dict):
            return {}
        return {model: result for model, result in results.items() if isinstance(result, dict)}


_route = partial(RouteSpec, tag="models")
_MODEL_CODES: Final = ("unknown_model", "model_not_allowed")
_RUN_CODES: Final = ("invalid_request", "model_not_loaded", "model_loading", "model_failed", "not_supported")

_Name = Annotated[str, PathParameter(description="Name or alias of the model; it may contain `/` and `:`.")]
StatusWord = Literal["available", "downloadable", "downloading", "unavailable"]
_STATUS: Final[dict[ModelState, tuple[int, StatusWord]]] = {
    ModelState.LOADED: (3, "available"),
    ModelState.LOADING: (1, "downloading"),
    ModelState.UNLOADING: (0, "unavailable"),
    ModelState.UNLOADED: (0, "unavailable"),
    ModelState.SLEEPING: (0, "unavailable"),
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

    An unloaded or sleeping model is `downloadable` if it is `autoload`, else `unavailable`. A model that is not loaded
    has as `reason` its last error, without network addresses and file paths, or, without an error, the reason of its
    state; None: neither is known."""
    code, word = _STATUS[route.state]
    if route.state.is_at_rest and route.autoload:
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


def declare_benchmarks(routes: HttpRoutes, live: LiveRoutes, benchmarks: Benchmarks) -> None:
    """Add `GET /v1/models/{name}/status`, and `GET` and `POST` of `/v1/models/{name}/benchmark`.

    Call before `models.declare_models`, whose route matches everything below /v1/models/.
    """

    def find_visible(request: Request, name: str) -> ModelRoute:
        route = find_model(live.current, name)
        request.state.caller.require_model(route)
        return route

    def find_whole(request: Request, name: str) -> ModelObject | None:
        is_declared = name in live.current.names
        return ModelObject.of(ModelView(find_visible(request, name))) if is_declared else None

    @routes.add(
        _route(
            "GET",
            "/v1/models/{name:path}/status",
            "Whether a model is ready",
            answer=ModelReadiness | ModelObject,
            codes=_MODEL_CODES,
        )
    )
    async def get_status(request: Request, name: _Name) -> ModelReadiness | ModelObject:
        """The model's state."""
        return find_whole(request, f"{name}/status") or describe_readiness(find_visible(request, name))

    @routes.add(
        _route(
            "GET",
            "/v1/models/{name:path}/benchmark",
            "The last benchmark of a model",
            answer=BenchmarkResult | ModelObject,
            codes=("benchmark_not_found", *_MODEL_CODES),
        )
    )
    async def get_benchmark(request: Request, name: _Name) -> BenchmarkResult | ModelObject:
        """Kept over restarts."""
        if (whole := find_whole(request, f"{name}/benchmark")) is not None:
            return whole
        return benchmarks.find_result(find_visible(request, name))

    @routes.add(
        _route(
            "POST",
            "/v1/models/{name:path}/benchmark",
            "Measure a model's speed",
            answer=BenchmarkResult,
            codes=(*_RUN_CODES, *_MODEL_CODES),
        )
    )
    async def run_benchmark(
        request: Request,
        name: _Name,
        wanted: Annotated[BenchmarkRequest | None, Body()] = None,
    ) -> BenchmarkResult:
        """Asks the prompts one after the other, beside other requests, and keeps the result. It counts as one request
        for the key's limits."""
        return await benchmarks.measure(request, find_visible(request, name), wanted or BenchmarkRequest())


_AICORE_CODES: Final = ("AICORE_UNAVAILABLE", "AICORE_UNKNOWN", "model_not_allowed")
_NOT_READY: Final = {2: "AICORE_DOWNLOADABLE", 1: "AICORE_DOWNLOADING", 0: "AICORE_UNAVAILABLE"}
_DEVICE: Final = ("soc_model", "device", "manufacturer")


class AicoreReadiness(BaseModel):
    """Whether Android's AICore, behind the model with the role `aicore`, can be used, and on what device. All further
    fields of the server's own answer stand beside these; with `?probe=all`, they tell of each configuration."""

    model_id: str
    status_code: Literal[0, 1, 2, 3] = Field(
        description="3: available. 2: downloadable. 1: downloading. 0: unavailable."
    )
    status: Literal["available", "downloadable", "downloading", "unavailable"]
    available: bool
    soc_model: str | None = Field(description="Null, as the two below: the server does not tell.")
    device: str | None
    manufacturer: str | None


def require_ready(status: AicoreStatus) -> None:
    """Do nothing if AICore is available, as told in `status`; nobody is asked.

    Raises:
        RoundhouseError: `AICORE_DOWNLOADABLE`, `AICORE_DOWNLOADING` or `AICORE_UNAVAILABLE`, by the status code;
            `AICORE_UNKNOWN` if there is none, because the device could not be asked.
    """
    if status.code == 3:
        return
    code = "AICORE_UNKNOWN" if status.code is None else _NOT_READY[status.code]
    raise RoundhouseError(code, status.error or f"AICore is {status.word} on the device.", param="model")


def describe_aicore(status: AicoreStatus) -> dict[str, Any]:
    """Return the body of `GET /v1/aicore/status`: the server's own fields, overridden by those of `AicoreReadiness`.

    `status.code` must not be None, as the answer has no word for that. What the server does not tell of its device is
    None.
    """
    device = {name: status.told.get(name) for name in _DEVICE}
    own = {"model_id": status.model_id, "status_code": status.code, "status": status.word}
    return {**status.told, **own, "available": status.code == 3, **device}


def declare_aicore(routes: HttpRoutes, live: LiveRoutes, probe: AicoreProbe, benchmarks: Benchmarks) -> None:
    """Add `GET /v1/aicore/status`, and `GET` and `POST /v1/aicore/benchmark`.

    The routes answer for the model with the role `aicore` in the routing table in force. Without such a model, they
    answer `AICORE_UNAVAILABLE`.
    """

    def find_model(request: Request) -> ModelRoute:
        route = find_aicore(live.current)
        if route is None:
            raise RoundhouseError("AICORE_UNAVAILABLE", "No model has the role `aicore`.")
        request.state.caller.require_model(route)
        return route

    @routes.add(
        _route("GET", "/v1/aicore/status", "Whether AICore is ready", answer=AicoreReadiness, codes=_AICORE_CODES)
    )
    async def get_status(
        request: Request, probe_kind: Annotated[Literal["all"] | None, Query(alias="probe")] = None
    ) -> Response:
        """Asks the device each time."""
        status = await probe.ask(find_model(request), probes_all=probe_kind == "all")
        if status.code is None:
            require_ready(status)
        return Response(json_bytes(describe_aicore(status)), media_type="application/json")

    @routes.add(
        _route(
            "GET",
            "/v1/aicore/benchmark",
            "The last benchmark of AICore",
            answer=BenchmarkResult,
            codes=("benchmark_not_found", *_AICORE_CODES),
        )
    )
    async def get_benchmark(request: Request) -> BenchmarkResult:
        return benchmarks.find_result(find_model(request))

    @routes.add(
        _route(
            "POST",
            "/v1/aicore/benchmark",
            "Measure AICore's speed",
            answer=BenchmarkResult,
            codes=(*_NOT_READY.values(), *_AICORE_CODES),
        )
    )
    async def run_benchmark(
        request: Request, wanted: Annotated[BenchmarkRequest | None, Body()] = None
    ) -> BenchmarkResult:
        """As `POST /v1/models/{model}/benchmark`, once AICore is available."""
        route = find_model(request)
        require_ready(await probe.ask(route))
        return await benchmarks.measure(request, route, wanted or BenchmarkRequest())


WARM_TIMEOUT_S: Final = 60.0
"""Seconds after which a warm-up answers `timeout` if the request sets no `timeout_s`. A load that has begun goes on."""
_WARM_CODES: Final = ("unknown_model", "model_not_allowed")


class WarmModel(BaseModel):
    """Answer with status 200 of a warm-up: the model has answered."""

    model: str
    status: Literal["warm"] = "warm"
    engine_loaded: Literal[True] = True
    ms: int = Field(description="Milliseconds that the warm-up took.")


class ColdModel(BaseModel):
    """Answer of a warm-up in which the model has not answered: status 504 with `timeout`, else 503. `ms`: milliseconds
    that it took. A load that has begun goes on."""

    status: Literal["error", "timeout", "aicore_not_ready"]
    aicore_status: str | None = Field(
        None, description="With `aicore_not_ready`: `downloadable`, `downloading`, `unavailable` or `unknown`."
    )
    error: str | None = Field(None, description="With `error`: the reason.")
    code: str | None = Field(None, description="With `error`: the error code, as inference requests get it.")
    ms: int


def choose_model(routes: Routes, named: str | None, default: str | None) -> ModelRoute:
    """Return the model to warm up: the named one, else the default one, else the only one that is declared.

    `named`, `default`: a name or an alias. `named` None or empty: the request names no model; `default` None: there is
    no default. Whether the caller may use the model is not checked.

    Raises:
        RoundhouseError: `unknown_model` if no model has the name; `invalid_request` if there is no name, and not
            exactly one model.
    """
    name = named or default
    if name is not None:
        return find_model(routes, name)
    if len(routes.models) != 1:
        message = "Name a model, by `?model=`, or set ROUNDHOUSE_DEFAULT_MODEL: there is not one alone."
        raise RoundhouseError("invalid_request", message, param="model")
    return next(iter(routes.models.values()))


def declare_warm_up(
    routes: HttpRoutes,
    live: LiveRoutes,
    requests: InnerRequests,
    aicore: AicoreProbe,
    *,
    default_model: str | None,
    now: Callable[[], float],
) -> None:
    """Add `POST /health/warm`.

    The route sends the model one small request through `requests` and waits for the answer.

    A model with the role `aicore` gets the request only if the probe `aicore` reports that it is available.
    `default_model`: name or alias of the model to warm up if the client names none; None: the only declared model, and
    `invalid_request` if there is not exactly one. `now` returns monotonic seconds.
    """

    @routes.add(
        _route("POST", "/health/warm", "Warm up a model", answer=WarmModel, codes=_WARM_CODES),
        responses={503: {"model": ColdModel}, 504: {"model": ColdModel}},
    )
    async def warm_up(
        request: Request,
        model: Annotated[str | None, Query(description="Name or alias; default: ROUNDHOUSE_DEFAULT_MODEL.")] = None,
        timeout_s: Annotated[float, Query(ge=0.1, le=3600)] = WARM_TIMEOUT_S,
    ) -> Response:
        """Asks the model for one token, which loads it if requests may load it, and waits for the answer. Other
        requests are not held up; the request counts as one for the key's limits."""
        caller, began_at = request.state.caller, now()
        route = choose_model(live.current, model, default_model)
        caller.require_model(route)
        if route.role == "aicore" and (status := await aicore.ask(route)).code != 3:
            told = {"status": "aicore_not_ready", "aicore_status": status.word}
            return _answer(503, {**told, "ms": _elapsed_ms(began_at, now())})
        path, body = probe_request(route)
        try:
            with Lifetime(timeout_s) as lifetime:
                lifetime.watch_client(request.receive, lambda: False)
                answer = await requests.send_request(path, body, request.headers.raw, caller)
        except DeadlineError:
            return _answer(504, {"status": "timeout", "ms": _elapsed_ms(began_at, now())})
        except ClientGoneError:
            return Response()  # which nobody gets
        return _report(route, answer, _elapsed_ms(began_at, now()))


def _report(route: ModelRoute, answer: InnerAnswer, ms: int) -> Response:
    error = answer.error
    if error is None:
        return _answer(200, {"model": route.name, "status": "warm", "engine_loaded": True, "ms": ms})
    told = {"status": "error", "error": str(error.get("message")), "code": str(error.get("code")), "ms": ms}
    return _answer(503, told)


def _elapsed_ms(began_at: float, ended_at: float) -> int:
    return round(1000 * (ended_at - began_at))


def _answer(status: int, fields: dict[str, Any]) -> Response:
    return Response(json_bytes(fields), status, media_type="application/json")
