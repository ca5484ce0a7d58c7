"""What goldens need of the product, imported here alone: where a module moves or is renamed, only this file changes."""

from __future__ import annotations

from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from pydantic import BaseModel, ValidationError

import gateway.__main__ as gateway_main
from controller.api.app import create_app
from controller.assembly import JOURNAL_NAME
from controller.cli.app import app as roundhouse_app
from controller.cli.exit_codes import ExitCode as CommandExit
from controller.cli.up.record import LOCK_NAME as UP_LOCK
from controller.cli.up.record import RECORD_NAME as UP_RECORD
from controller.cli.up.run import CONTROLLER_ENDS, GATEWAY_ENDS, program_specs
from controller.config import last_good
from controller.config.json_schema import schema_text
from controller.config.keys import SECRET_PREFIX
from controller.config.parse import parse_folder
from controller.config.runtime_declarations import combine_declarations
from controller.desired.resolve import DeclaredModel, Defaults, resolve_desired
from controller.desired.source import DesiredStateSource
from controller.engines import ENGINES
from controller.engines.base import ClaimedGpu, Engine, RenderContext
from controller.engines.options import list_options
from controller.engines.stub import StubDefinition
from controller.gpus import Gpu, GpuProcess
from controller.journal.event_log import EventLog
from controller.journal.recorder import Recorder
from controller.journal.round_events import Trouble
from controller.observe.gateway_hub import GatewayHub
from controller.observe.remote_health import RemoteHealth
from controller.planning.plan import plan
from controller.redaction.redactor import redact_nothing
from controller.reports.metrics import create_registry as controller_registry
from controller.runtimes.base import StartRequest
from controller.runtimes.claimed_gpus import visible_gpus
from controller.runtimes.docker.container_spec import HostContext, container_config
from controller.runtimes.docker.container_spec import render_context as docker_context
from controller.runtimes.docker.gpus import COMMAND
from controller.runtimes.docker.labels import CACHE_ROLE, NETWORK_ROLE, PROBE_ROLE, own_labels
from controller.runtimes.docker.user import UserIdentity
from controller.runtimes.naming import replica_name, replica_token
from controller.runtimes.process.records import Records
from controller.runtimes.process.runtime import ProcessRuntime
from controller.runtimes.process.spawn import mark_variables
from controller.runtimes.process.stat import boot_id
from controller.schema.applied_figures import AppliedFigures
from controller.schema.desired import Definition
from controller.schema.errors import ERROR_CODES
from controller.schema.override import Override
from controller.schema.routing import GatewayReport, PrefillTokens, RemoteProbe, RemoteResult, Stamp
from controller.schema.tools import ToolCallRecord
from controller.settings import ControllerSettings
from controller.sizing.history import MemoryHistory
from controller.sizing.history import save_history as save_observed
from controller.state import (
    HOST,
    DesiredModel,
    DesiredState,
    Draining,
    Failure,
    Health,
    ObservedReplica,
    ObservedState,
    Phase,
    ReplicaId,
    Statement,
)
from controller.status.model_status import assess_models
from controller.status.permissions import build_permissions
from controller.status.reconcile_round import Round
from controller.status.routing_table import build_routes
from controller.storage.state_dir import StateDir
from controller.storage.state_dir import StoredState as StoredMemory
from gateway.api.declare import admin_errors
from gateway.api.openapi_merge import merge_documents
from gateway.app import create_gateway
from gateway.control.inflight import InflightCounts
from gateway.control.link import LinkState
from gateway.metrics.localllm_names import LoadedEngine
from gateway.metrics.registry import Metrics as GatewayMetrics
from gateway.metrics.request_metrics import EngineWork
from gateway.protocols.common.dialect import Usage
from gateway.routing.live_routes import LiveRoutes
from gateway.settings import GatewaySettings
from gateway.storage.database import StateDatabase
from gateway.storage.responses.records import HistoryBounds, StoredTotals
from gateway.storage.store import FILE_NAME as RESPONSES_NAME
from retrieval.settings import RetrievalSettings
from transfers.settings import TransfersSettings
from worker.__main__ import LAUNCHERS, parse_engine
from worker.__main__ import dispatch as run_worker
from worker.clockwork import main as clockwork_main

__all__ = [
    "CACHE_ROLE",
    "COMMAND",
    "ENGINES",
    "ERROR_CODES",
    "HOST",
    "JOURNAL_NAME",
    "LAUNCHERS",
    "NETWORK_ROLE",
    "PROBE_ROLE",
    "RESPONSES_NAME",
    "SECRET_PREFIX",
    "AppliedFigures",
    "BaseModel",
    "ClaimedGpu",
    "CollectorRegistry",
    "CommandExit",
    "ControllerSettings",
    "DeclaredModel",
    "Defaults",
    "Definition",
    "DesiredModel",
    "DesiredState",
    "DesiredStateSource",
    "Draining",
    "Engine",
    "EngineWork",
    "EventLog",
    "Failure",
    "FastAPI",
    "GatewayHub",
    "GatewayMetrics",
    "GatewayReport",
    "GatewaySettings",
    "Gpu",
    "GpuProcess",
    "Health",
    "HistoryBounds",
    "HostContext",
    "InflightCounts",
    "LinkState",
    "LiveRoutes",
    "LoadedEngine",
    "MemoryHistory",
    "ObservedReplica",
    "ObservedState",
    "Override",
    "Phase",
    "PrefillTokens",
    "ProcessRuntime",
    "Recorder",
    "Records",
    "RemoteHealth",
    "RemoteProbe",
    "RemoteResult",
    "RenderContext",
    "ReplicaId",
    "RetrievalSettings",
    "Round",
    "Stamp",
    "StartRequest",
    "StateDatabase",
    "StateDir",
    "Statement",
    "StoredMemory",
    "StoredTotals",
    "StubDefinition",
    "ToolCallRecord",
    "TransfersSettings",
    "Trouble",
    "Usage",
    "UserIdentity",
    "ValidationError",
    "admin_errors",
    "assess_models",
    "boot_id",
    "build_permissions",
    "build_routes",
    "clockwork_main",
    "combine_declarations",
    "container_config",
    "controller_registry",
    "create_app",
    "create_gateway",
    "docker_context",
    "last_good",
    "list_options",
    "mark_variables",
    "merge_documents",
    "own_labels",
    "parse_engine",
    "parse_folder",
    "plan",
    "program_exits",
    "redact_nothing",
    "replica_name",
    "replica_token",
    "resolve_desired",
    "roundhouse_app",
    "run_worker",
    "save_observed",
    "schema_text",
    "started_by_up",
    "up_files",
    "visible_gpus",
]


def program_exits() -> dict[str, dict[int, str]]:
    """The exit codes of `python -m controller` and `python -m gateway`, by what `roundhouse up` makes of them."""
    assert {gateway_main.EXIT_SETTINGS, gateway_main.EXIT_PORT} == set(GATEWAY_ENDS)
    programs = {"controller": CONTROLLER_ENDS, "gateway": GATEWAY_ENDS}
    return {name: {code: end.exit.name for code, end in ends.items()} for name, ends in programs.items()}


def started_by_up() -> dict[str, list[str]]:
    """The controller and the gateway as `roundhouse up` starts them: what follows the interpreter, then variables."""
    return {spec.name: [*spec.argv[1:], *sorted(spec.env)] for spec in program_specs(ControllerSettings(), {})}


def up_files() -> tuple[str, ...]:
    """What `roundhouse up` keeps in the state folder."""
    return UP_LOCK, UP_RECORD
