"""What goldens need of the product, imported here alone: where a module moves or is renamed, only this file changes."""

from __future__ import annotations

from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from pydantic import BaseModel, ValidationError

from assistant.extension import McpServersCollector, StoredResponsesCollector
from assistant.storage.database import StateDatabase
from assistant.storage.records import HistoryBounds, StoredTotals
from assistant.storage.store import FILE_NAME as RESPONSES_NAME
from cli.app import app as roundhouse_app
from cli.output import ExitCode as CommandExit
from cli.up.run import CONTROLLER_ENDS, GATEWAY_ENDS, program_specs
from cli.up.supervisor import LOCK_NAME as UP_LOCK
from cli.up.supervisor import RECORD_NAME as UP_RECORD
from common.program import EXIT_ADDRESS, EXIT_USAGE
from contract.desired import Definition
from contract.errors import ERROR_CODES
from contract.override import Override
from contract.routing import GatewayReport, PrefillTokens, RemoteProbe, RemoteResult, Stamp
from contract.tools import ToolCallRecord
from controller.api.app import create_app
from controller.assembly import JOURNAL_NAME
from controller.config.debounce import load_last_good, save_last_good
from controller.config.json_schema import schema_text
from controller.config.parse import parse_folder
from controller.config.runtime_declarations import combine_declarations
from controller.config.validate import SECRET_PREFIX
from controller.desired.resolve import DeclaredModel, Defaults, resolve_desired
from controller.desired.source import DesiredCallbacks, DesiredStateSource
from controller.engines import ENGINES
from controller.engines.base import ClaimedGpu, Engine, RenderContext
from controller.engines.options import list_options
from controller.engines.stub import StubDefinition
from controller.hosts import HOST, Gpu, GpuProcess, Host
from controller.journal import EventLog, Recorder
from controller.memory_history import MemoryHistory
from controller.memory_history import save_history as save_observed
from controller.model_status import Round, assess_models
from controller.observe.gateway_hub import GatewayHub, RemoteHealth
from controller.planning.plan import plan
from controller.redaction import redact_nothing
from controller.reports.metrics import create_registry as controller_registry
from controller.round_events import Trouble
from controller.routing_table import build_permissions, build_routes
from controller.runtimes.base import StartRequest, replica_name, replica_token
from controller.runtimes.docker.container_spec import (
    CACHE_ROLE,
    NETWORK_ROLE,
    PROBE_ROLE,
    HostContext,
    UserIdentity,
    container_config,
    own_labels,
)
from controller.runtimes.docker.container_spec import render_context as docker_context
from controller.runtimes.docker.gpus import COMMAND
from controller.runtimes.gpus import visible_gpus
from controller.runtimes.process.groups import boot_id
from controller.runtimes.process.launch import Records, mark_variables
from controller.runtimes.process.runtime import ProcessRuntime
from controller.settings import ControllerSettings
from controller.state import (
    AppliedFigures,
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
from controller.state_dir import StateDir
from controller.state_dir import StoredState as StoredMemory
from gateway.api.declare import admin_errors
from gateway.api.openapi_merge import merge_documents
from gateway.control.inflight import InflightCounts
from gateway.control.link import LinkState
from gateway.metrics.request_metrics import EngineWork
from gateway.metrics.request_metrics import Metrics as GatewayMetrics
from gateway.metrics.state_metrics import (
    CertificateCollector,
    ConnectionCollector,
    LoadedEngine,
    LocalllmCollector,
    StateCollector,
)
from gateway.protocols.common.dialect import Usage
from gateway.routing.table import LiveRoutes
from gateway.settings import GatewaySettings
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
    "CertificateCollector",
    "ClaimedGpu",
    "CollectorRegistry",
    "CommandExit",
    "ConnectionCollector",
    "ControllerSettings",
    "DeclaredModel",
    "Defaults",
    "Definition",
    "DesiredCallbacks",
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
    "Host",
    "HostContext",
    "InflightCounts",
    "LinkState",
    "LiveRoutes",
    "LoadedEngine",
    "LocalllmCollector",
    "McpServersCollector",
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
    "StateCollector",
    "StateDatabase",
    "StateDir",
    "Statement",
    "StoredMemory",
    "StoredResponsesCollector",
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
    "docker_context",
    "list_options",
    "load_last_good",
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
    "save_last_good",
    "save_observed",
    "schema_text",
    "started_by_up",
    "up_files",
    "visible_gpus",
]


def program_exits() -> dict[str, dict[int, str]]:
    """The exit codes of `python -m controller` and `python -m gateway`, by what `roundhouse up` makes of them."""
    assert {EXIT_USAGE, EXIT_ADDRESS} == set(GATEWAY_ENDS)
    programs = {"controller": CONTROLLER_ENDS, "gateway": GATEWAY_ENDS}
    return {name: {code: end.exit.name for code, end in ends.items()} for name, ends in programs.items()}


def started_by_up() -> dict[str, list[str]]:
    """The controller and the gateway as `roundhouse up` starts them: what follows the interpreter, then variables."""
    return {spec.name: [*spec.argv[1:], *sorted(spec.env)] for spec in program_specs(ControllerSettings(), {})}


def up_files() -> tuple[str, ...]:
    """What `roundhouse up` keeps in the state folder."""
    return UP_LOCK, UP_RECORD
