"""Tables that others work by: options of every command, exit codes, documents that describe the APIs and the files,
error codes, metrics, settings.

And exit codes.

Without descriptions and summaries, which are prose.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import Mock, patch

import typer

from tests.fakes.gateway_harness import assemble_gateway
from tests.support.goldens.golden import without_prose
from tests.support.goldens.product import (
    ERROR_CODES,
    LAUNCHERS,
    BaseModel,
    CertificateCollector,
    CollectorRegistry,
    CommandExit,
    ConnectionCollector,
    ControllerSettings,
    DesiredModel,
    DesiredState,
    EngineWork,
    FastAPI,
    GatewayMetrics,
    GatewaySettings,
    Gpu,
    GpuProcess,
    Host,
    InflightCounts,
    LinkState,
    LiveRoutes,
    LoadedEngine,
    LocalllmCollector,
    McpServersCollector,
    ObservedReplica,
    ObservedState,
    Phase,
    ReplicaId,
    RetrievalSettings,
    Round,
    StateCollector,
    Statement,
    StoredResponsesCollector,
    StoredTotals,
    StubDefinition,
    TransfersSettings,
    Usage,
    admin_errors,
    assess_models,
    clockwork_main,
    controller_registry,
    create_app,
    merge_documents,
    parse_engine,
    plan,
    program_exits,
    roundhouse_app,
    run_worker,
    schema_text,
)

_SHELL_COMPLETION: Final = ("install_completion", "show_completion")
"""Typer's own; what they take depends on the machine."""
_TYPES: Final = (int, float, str)


def make_roundhouse() -> Any:
    """Every command's arguments and options, in order."""
    return dict(_commands(typer.main.get_command(roundhouse_app), "roundhouse"))


def make_worker() -> Any:
    """The worker's own arguments, each engine's, and those of the program that makes the demo model."""
    [own] = _parsers(lambda: run_worker([]))
    engines = next(list(action.choices) for action in own._actions if action.choices)
    commands = {"worker": _arguments(own), "worker.clockwork": _arguments(*_parsers(lambda: clockwork_main([])))}
    for name in engines:
        if name not in LAUNCHERS:
            commands[f"worker {name}"] = _arguments(*_parsers(partial(parse_engine, name, [])))
    return commands


def make_exits() -> Any:
    """What the exit codes of the programs say."""
    return {"roundhouse": {code.name: code.value for code in CommandExit}, **program_exits()}


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    yield name, [_option(each) for each in command.params if each.name not in _SHELL_COMPLETION]
    for child, each in sorted(getattr(command, "commands", {}).items()):
        yield from _commands(each, f"{name} {child}")


def _option(parameter: Any) -> dict[str, Any]:
    fields = vars(parameter)
    kind = fields["type_descriptor"].annotation
    return {
        "names": [*fields["opts"], *fields["secondary_opts"]],
        "type": kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind),
        **{key: fields[key] for key in ("default", "required", "multiple", "nargs", "envvar", "min", "max", "metavar")},
        "is_flag": fields.get("is_flag", False),
        "hidden": fields["hidden"],
    }


class _ParsersSeenError(Exception):
    """What a program was about to parse its arguments with."""


@contextmanager
def _caught(seen: list[argparse.ArgumentParser]) -> Iterator[None]:
    def parse_args(parser: argparse.ArgumentParser, *_: object) -> None:
        seen.append(parser)
        raise _ParsersSeenError

    with patch.object(argparse.ArgumentParser, "parse_args", parse_args):
        try:
            yield
        except _ParsersSeenError:
            return
    raise AssertionError("the program parsed no arguments")


def _parsers(run: Callable[[], object]) -> list[argparse.ArgumentParser]:
    seen: list[argparse.ArgumentParser] = []
    with _caught(seen):
        run()
    return seen


def _arguments(parser: argparse.ArgumentParser) -> list[dict[str, Any]]:
    return [
        {
            "names": list(action.option_strings) or [action.dest],
            "type": action.type.__name__ if action.type in _TYPES else "checked" if action.type else None,
            "action": type(action).__name__.strip("_"),
            "default": action.default if isinstance(action.default, str | int | float | bool | None) else "another",
            "required": action.required,
            "choices": None if action.choices is None else [str(each) for each in action.choices],
            "nargs": action.nargs,
        }
        for action in parser._actions
        if action.option_strings != ["-h", "--help"]
    ]


def make_document() -> Any:
    """What `GET /openapi.json` says: the gateway's own document, with the admin routes of the controller's."""
    document = merge_documents(_gateway_app().openapi(), _controller_app().openapi(), admin_errors())
    # Of each release another one.
    document["info"] = {key: value for key, value in document["info"].items() if key != "version"}
    return without_prose(document)


def make_routes() -> Any:
    """Every route that is served, also those that no document names."""
    return {"controller": _routes(_controller_app()), "gateway": _routes(_gateway_app())}


def make_schema() -> Any:
    return without_prose(json.loads(schema_text()))


def _routes(app: FastAPI) -> list[str]:
    return sorted(
        f"{path} {' '.join(sorted(getattr(route, 'methods', None) or ['websocket']))}"
        for route in app.routes
        if (path := getattr(route, "path", None)) is not None
    )


def _gateway_app() -> FastAPI:
    framework: Any = assemble_gateway(GatewaySettings(controller_url="unix:/nowhere")).app._framework
    assert isinstance(framework, FastAPI)
    return framework


def _controller_app() -> FastAPI:
    # Declaring routes calls nothing of it.
    return create_app(Mock(), CollectorRegistry())


def make_errors() -> Any:
    """What a code always means to programs."""
    return {
        code: {"status": entry.status, "type": entry.type, "retry": entry.retry} for code, entry in ERROR_CODES.items()
    }


def make_settings() -> Any:
    """Every variable: type and bounds, default."""
    return {
        "controller": _settings(ControllerSettings),
        "gateway": _settings(GatewaySettings),
        "retrieval": _settings(RetrievalSettings),
        "transfers": _settings(TransfersSettings),
    }


def _settings(settings: type[BaseModel]) -> dict[str, Any]:
    prefix = str(settings.model_config.get("env_prefix"))
    schema = without_prose(settings.model_json_schema()["properties"], named=True)
    return {
        f"{prefix}{name.upper()}": {key: value for key, value in field.items() if key != "title"}
        for name, field in schema.items()
    }


def make_metrics() -> Any:
    """Families: type, labels, and the buckets of histograms."""
    controller = _families(_controller_metrics())
    several = _families(_controller_metrics("a"))
    return {
        "controller": controller,
        "controller, several hosts": {name: each for name, each in several.items() if each != controller.get(name)},
        "gateway": _families(_gateway_metrics()),
    }


def _families(registry: CollectorRegistry) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for family in registry.collect():
        if family.name.startswith("process_"):
            continue  # the client library's, where the system has /proc
        labels = sorted({label for sample in family.samples for label in sample.labels if label != "le"})
        buckets = [sample.labels["le"] for sample in family.samples if "le" in sample.labels]
        samples = sorted({sample.name for sample in family.samples})
        found[family.name] = {"type": family.type, "labels": labels, "samples": samples}
        if buckets:
            found[family.name]["buckets"] = buckets
    return found


def _controller_metrics(host: str = "") -> CollectorRegistry:
    """Metrics of a round that has one of everything, on a host of this name."""
    model = DesiredModel(
        "m", StubDefinition(backend="stub"), "stub", "h", 2, Statement("file", 0.0, "enabled"), gpu_count=3
    )
    desired = DesiredState(1, {"m": model})
    replica = ObservedReplica(ReplicaId("m", 0, "h"), "rh-i-m-0-h-1", Phase.RUNNING, 1.0)
    processes = (GpuProcess(7, 200, "python3", replica.name),)
    gpu = Gpu("GPU-a", 0, "fake", 1_000, 300, utilization_percent=40, processes=processes, host=host)
    observed = ObservedState(5.0, (replica,), hosts=(Host(host, gpus=(gpu,)),))
    planned = plan(desired, observed, 5.0)
    done: Any = SimpleNamespace(
        round=Round(desired, observed, planned, assess_models(desired, observed, planned)), error=None
    )
    return controller_registry(done, lambda: {"start": 2})


def _gateway_metrics() -> CollectorRegistry:
    """Metrics that have counted one of everything."""
    metrics, link, ledger = GatewayMetrics(), LinkState(), InflightCounts(lambda: 0.0, {"m": 1})
    link.table_at = 1.0
    ledger.enter_replica("m", "r", "req-1")
    live: Any = SimpleNamespace(current_or_none=SimpleNamespace(models={"m": SimpleNamespace(endpoints=())}))
    assert hasattr(LiveRoutes, "current_or_none")
    metrics.registry.register(StateCollector(live, ledger, link, lambda: 3.0))
    metrics.registry.register(ConnectionCollector(lambda: 3, lambda: 2))
    metrics.registry.register(McpServersCollector(lambda: {"weather": True}))
    metrics.registry.register(StoredResponsesCollector(lambda: StoredTotals(5, 4096), lambda: 1))
    metrics.registry.register(CertificateCollector(lambda: False))
    metrics.key_series_of("team-a").count_finished(Usage(3, 4))
    metrics.client_series_of(b"app/1.0").count_finished(0.5)
    work = EngineWork(inference_s=0.9, chunks=4, first_token_s=0.5, stream_s=0.3)
    metrics.model_series_of("m").count_finished("completed", work, Usage(3, 4), 0)
    metrics.registry.register(
        LocalllmCollector(metrics.requests, ledger, lambda: [LoadedEngine("m_model_stub_0", "stub")])
    )
    series = metrics.series_of("m", "/v1/chat/completions")
    series.count_finished(200, 1.0, 0.5, Usage(3, 4, 1))
    series.count_turn("reused", Usage(3, 4, 0))
    series.count_retries()
    series.count_client_left()
    series.count_broken_off("engine_disconnected")
    series.count_waited(0.2)
    series.count_refused("queue_full")
    return metrics.registry
