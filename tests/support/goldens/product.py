"""What goldens need of the product, imported here alone: where a module moves or is renamed, only this file changes."""

from __future__ import annotations

from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from pydantic import BaseModel, ValidationError

import gateway.__main__ as gateway_main
from controller.api.app import create_app
from controller.assess import assess
from controller.cli.app import app as roundhouse_app
from controller.cli.exits import Exit as CommandExit
from controller.cli.up_record import LOCK_NAME as UP_LOCK
from controller.cli.up_record import RECORD_NAME as UP_RECORD
from controller.cli.up_run import CONTROLLER_ENDS, GATEWAY_ENDS, program_specs
from controller.conceal import nothing_secret
from controller.config import last_good
from controller.config.json_schema import schema_text
from controller.config.keys import SECRET_PREFIX
from controller.config.parse import parse
from controller.controller import JOURNAL_NAME
from controller.engines import ENGINES
from controller.engines.base import Engine, RenderContext
from controller.engines.stub import StubDefinition
from controller.gateways import GatewayHub
from controller.happenings import Trouble
from controller.journal import Journal
from controller.metrics import create_registry as controller_registry
from controller.observed_memory import ObservedMemory
from controller.observed_memory import save as save_observed
from controller.plan import plan
from controller.publish import routes, table_keys
from controller.reconciler import Round
from controller.recorder import Recorder
from controller.resolve import Declared, Defaults, resolve
from controller.runtimes.base import StartRequest
from controller.runtimes.docker_gpus import COMMAND
from controller.runtimes.docker_labels import CACHE_ROLE, NETWORK_ROLE, PROBE_ROLE, own_labels
from controller.runtimes.docker_spec import HostSide, container_config
from controller.runtimes.docker_spec import render_context as docker_context
from controller.runtimes.docker_user import Identity
from controller.runtimes.naming import replica_name, replica_token
from controller.runtimes.process import ProcessRuntime
from controller.runtimes.process_records import Records
from controller.runtimes.process_spawn import marks, visible_gpus
from controller.runtimes.process_stat import boot_id
from controller.schema.desired import Definition
from controller.schema.errors import ERROR_CODES
from controller.schema.override import Override
from controller.schema.routing import GatewayReport, Stamp
from controller.settings import ControllerSettings
from controller.state import (
    HOST,
    DesiredModel,
    DesiredState,
    Draining,
    Failure,
    Gpu,
    GpuProcess,
    Health,
    ObservedReplica,
    ObservedState,
    Phase,
    ReplicaId,
    Statement,
)
from controller.store import Memory as StoredMemory
from controller.store import Store
from controller.watch import DesiredFiles
from gateway.api.declare import admin_errors
from gateway.app import create_gateway
from gateway.dialects.base import Usage
from gateway.ledger import Ledger
from gateway.live_routes import LiveRoutes
from gateway.metrics import LinkState
from gateway.metrics import Metrics as GatewayMetrics
from gateway.openapi import merge
from gateway.responses.database import Database
from gateway.responses.store import FILE_NAME as RESPONSES_NAME
from gateway.responses.stored import Bounds, Stored
from gateway.settings import GatewaySettings
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
    "BaseModel",
    "Bounds",
    "CollectorRegistry",
    "CommandExit",
    "ControllerSettings",
    "Database",
    "Declared",
    "Defaults",
    "Definition",
    "DesiredFiles",
    "DesiredModel",
    "DesiredState",
    "Draining",
    "Engine",
    "Failure",
    "FastAPI",
    "GatewayHub",
    "GatewayMetrics",
    "GatewayReport",
    "GatewaySettings",
    "Gpu",
    "GpuProcess",
    "Health",
    "HostSide",
    "Identity",
    "Journal",
    "Ledger",
    "LinkState",
    "LiveRoutes",
    "ObservedMemory",
    "ObservedReplica",
    "ObservedState",
    "Override",
    "Phase",
    "ProcessRuntime",
    "Recorder",
    "Records",
    "RenderContext",
    "ReplicaId",
    "Round",
    "Stamp",
    "StartRequest",
    "Statement",
    "Store",
    "Stored",
    "StoredMemory",
    "StubDefinition",
    "Trouble",
    "Usage",
    "ValidationError",
    "admin_errors",
    "assess",
    "boot_id",
    "clockwork_main",
    "container_config",
    "controller_registry",
    "create_app",
    "create_gateway",
    "docker_context",
    "last_good",
    "marks",
    "merge",
    "nothing_secret",
    "own_labels",
    "parse",
    "parse_engine",
    "plan",
    "program_exits",
    "replica_name",
    "replica_token",
    "resolve",
    "roundhouse_app",
    "routes",
    "run_worker",
    "save_observed",
    "schema_text",
    "started_by_up",
    "table_keys",
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
