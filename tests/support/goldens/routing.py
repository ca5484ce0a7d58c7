"""What crosses the link between controller and gateway, as it is sent."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any, Final

from pydantic import SecretStr

from tests.support.definitions import MODELS_ROOT, snapshot
from tests.support.goldens.product import (
    AppliedFigures,
    DeclaredModel,
    Defaults,
    DesiredState,
    Draining,
    Failure,
    GatewayHub,
    GatewayReport,
    Gpu,
    Health,
    Host,
    ObservedReplica,
    ObservedState,
    Override,
    Phase,
    PrefillTokens,
    RemoteHealth,
    RemoteProbe,
    RemoteResult,
    ReplicaId,
    Stamp,
    StoredMemory,
    ToolCallRecord,
    assess_models,
    build_permissions,
    build_routes,
    parse_folder,
    plan,
    replica_name,
    replica_token,
    resolve_desired,
)

NOW: Final = 1_700_000_000.0
INSTANCE: Final = "golden"
SECRET: Final = b"golden secret"
MODELS: Final[dict[str, dict[str, Any]]] = {
    "loaded": {
        "backend": "stub",
        "replicas": 2,
        "aliases": ["org/loaded:q4", "default"],
        "queue_limit": 3,
        "target_inflight": 4,
    },
    "told-its-context": {
        "model_path": "m.gguf",
        "gpus": 1,
        "llama_server_n_ctx": 8192,
        "llama_server_mmproj": "p.gguf",
    },
    "loading": {"backend": "vllm", "model_path": "hf", "gpus": 1, "vllm_tool_call_parser": "hermes"},
    "failed": {"backend": "stub", "stub_fail": "as asked"},
    "disabled": {"backend": "llama_cpp", "model_path": "m.gguf", "enabled": False, "prompt_format": "gemma4_template"},
    "on-demand": {"backend": "ct2", "model_path": "ct2", "enabled": False, "autoload": True, "ct2_max_tokens": 512},
    "unloading": {"backend": "stub"},
    "embeddings": {"model_path": "e.onnx", "matryoshka": True, "onnx_max_tokens": 256},
    "remote": {
        "backend": "openai_remote",
        "base_url": "https://models.example/api/v1",
        "remote_model": "theirs",
        "thinking_modes": ["default", "enabled", "disabled"],
        "thinking_field": "reasoning_effort",
        "max_tokens_field": "max_completion_tokens",
        "remote_fields": ["top_k"],
    },
}
KEYS: Final[dict[str, dict[str, Any]]] = {
    "team-a": {"sha256": sha256(b"a").hexdigest()},
    "team-a-batch": {
        "sha256": sha256(b"a-batch").hexdigest(),
        "tenant": "team-a",
        "models": ["loaded", "org/*"],
        "service_tiers": ["flex"],
        "requests_per_minute": 60,
        "tokens_per_minute": 100_000,
        "concurrency": 4,
        "expires": "2027-01-31",
    },
    "operator": {
        "sha256": sha256(b"operator").hexdigest(),
        "tenant": "ops",
        "scopes": ["inference", "admin"],
        "weight": 2.5,
        "service_tiers": ["priority", "default", "flex"],
        "tools": ["current_time", "weather__*"],
    },
}
TOOLS: Final[dict[str, dict[str, Any]]] = {
    "current_time": {},
    "fetch_url": {"hosts": ["docs.python.org", "*.example.org"], "timeout_s": 10},
    "write_file": {"folder": "/srv/notes", "write": True, "max_output_kib": 8},
}
MCP_SERVERS: Final[dict[str, dict[str, Any]]] = {
    "weather": {"url": "https://mcp.example.org/mcp", "headers": {"Authorization": "Bearer x"}, "tools": ["now"]},
    "time": {"command": ["mcp-server-time"]},
}
FILE: Final = {"models": MODELS, "keys": KEYS, "tools": TOOLS, "mcp_servers": MCP_SERVERS}


def make_table() -> Any:
    """A routing table with models in every state, keys, tenants and tools."""
    desired = _desired()
    observed = _observed(desired)
    statuses = assess_models(desired, observed, plan(desired, observed, NOW))
    hub = GatewayHub(INSTANCE, 7, wake=lambda: None, clock=lambda: NOW)
    hub.publish_table(
        build_routes(
            desired,
            observed,
            statuses,
            lambda name: replica_token(SECRET, name),
            _remote_probes(desired),
            {"told-its-context": 128},
        ),
        *build_permissions(desired, {}),
    )
    assert hub.table is not None
    return json.loads(hub.table.model_dump_json())


def make_report() -> Any:
    """A gateway's report with everything in it."""
    report = GatewayReport(
        gateway_id="gw-0123456789abcdef",
        addresses=("http://127.0.0.1:8080", "https://[::1]:8080"),
        stamp=Stamp(epoch=7, seq=3),
        inflight={"rh-golden-loaded-0-01234567-1": 2},
        queued={"loaded": 1, "on-demand": 3},
        waits_since={"on-demand": NOW - 4},
        prefill={"loaded": PrefillTokens(requests=1, processed=256, total=1606)},
        last_used={"loaded": NOW - 1.5},
        keys_used={"ci": NOW - 1.5},
        demand={"on-demand": NOW - 4},
        leaving={"rh-golden-unloading-0-01234567-1": {"req-1": NOW - 60}},
        ending=True,
        tool_calls=(
            ToolCallRecord(
                sequence=2,
                at=NOW - 1,
                tool="weather__now",
                server="weather",
                caller="operator",
                request_id="req-2",
                arguments='{"city": "Bern"}',
                outcome="ok",
                duration_ms=40,
                output_bytes=17,
            ),
        ),
        failed={"rh-golden-loaded-1-01234567-1": NOW - 2},
        remotes={
            "remote": RemoteResult(spec="0123456789abcdef", at=NOW - 1),
            "other": RemoteResult(spec="fedcba9876543210", at=NOW - 3, error="https://o.example/m answers HTTP 500"),
        },
    )
    return json.loads(report.model_dump_json())


def _desired() -> DesiredState:
    parsed = parse_folder(snapshot({"models.json": json.dumps(FILE)}), MODELS_ROOT)
    assert parsed.is_valid, parsed.problems
    declared = {
        name: DeclaredModel(definition, MODELS[name], NOW - 100) for name, definition in parsed.definitions.items()
    }
    unload = Override.from_statement(
        MODELS["unloading"], model="unloading", action="unload", at=NOW - 10, actor="operator"
    )
    state = resolve_desired(declared, StoredMemory(overrides={"unloading": unload}), Defaults(), generation=1)
    return DesiredState(1, state.models, keys=parsed.keys, tools=parsed.tools.tools, mcp_servers=parsed.tools.servers)


def _remote_probes(desired: DesiredState) -> dict[str, RemoteProbe]:
    """As the controller tells them: by the definition's hash, with the key."""
    hub = GatewayHub(INSTANCE, 7, wake=lambda: None, clock=lambda: NOW)
    health = RemoteHealth(hub, interval_s=2.0, timeout_s=5.0, wake=lambda: None, clock=lambda: NOW)
    health.track_models([desired.models["remote"]])
    secret = SecretStr(replica_token(SECRET, "remote"))
    return {name: probe.model_copy(update={"token": secret}) for name, probe in health.list_probes().items()}


def _observed(desired: DesiredState) -> ObservedState:
    failed = ReplicaId("failed", 0, desired.models["failed"].spec_hash, 3)
    loading = _replica(desired, "loading", ready=False)
    leaving = _replica(desired, "unloading", draining=Draining(NOW - 10, idle=False))
    return ObservedState(
        at=NOW,
        replicas=(
            _replica(desired, "loaded"),
            _replica(desired, "loaded", index=1),
            _replica(desired, "told-its-context", context=4096, claims={"GPU-0": 10_000}),
            _replica(desired, "embeddings"),
            loading,
            leaving,
        ),
        failures={failed.key: Failure(3, NOW - 5, "the engine ended with code 1: as asked", NOW + 20, 3)},
        hosts=(Host(gpus=(Gpu("GPU-0", 0, "fake", 24_000), Gpu("GPU-1", 1, "fake", 24_000))),),
        remotes={"remote": None},
        progress={loading.name: 0.4},
    )


def _replica(
    desired: DesiredState,
    model: str,
    *,
    index: int = 0,
    ready: bool = True,
    context: int | None = None,
    claims: dict[str, int] | None = None,
    draining: Draining | None = None,
) -> ObservedReplica:
    replica = ReplicaId(model, index, desired.models[model].spec_hash, 1)
    return ObservedReplica(
        replica,
        replica_name(INSTANCE, replica),
        Phase.RUNNING,
        created_at=NOW - 50,
        started_at=NOW - 50,
        health=Health.READY if ready else Health.STARTING,
        ready_since=NOW - 30 if ready else None,
        base_url=f"http://127.0.0.1:{40_000 + index}",
        claims=claims or {},
        figures=AppliedFigures(context_length=context),
        draining=draining,
    )
