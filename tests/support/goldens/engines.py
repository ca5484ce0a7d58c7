"""What each backend's definitions become: spec hash, container, process, files, probe, APIs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import PurePosixPath
from typing import Any, Final

from tests.support.goldens.definitions import DEFINITIONS
from tests.support.goldens.product import (
    ENGINES,
    HOST,
    ClaimedGpu,
    DeclaredModel,
    Defaults,
    Definition,
    DesiredModel,
    Engine,
    Gpu,
    HostContext,
    RenderContext,
    ReplicaId,
    StartRequest,
    StoredMemory,
    UserIdentity,
    ValidationError,
    container_config,
    docker_context,
    mark_variables,
    replica_name,
    replica_token,
    resolve_desired,
    visible_gpus,
)

MODEL: Final = "org/model:q4"
INSTANCE: Final = "golden"
SECRET: Final = b"golden secret"
IMAGES: Final = {
    "llama-server": "llama-server:1",
    "worker": "worker:1",
    "worker-exllamav3": "worker-exllamav3:1",
    "worker-vllm": "worker-vllm:1",
    "vllm": "vllm:1",
}
USER: Final = UserIdentity(1000, 1001)
PROGRAMS: Final = {"python": "/opt/venv/bin/python", "llama-server": "/usr/bin/llama-server"}
GPU_MIB: Final = 24_000


def definition_of(backend: str, fields: dict[str, Any]) -> Definition:
    """The definition, validated as a file's is."""
    engine = ENGINES[backend]
    needs_name = engine.definition.model_fields["backend"].is_required()
    definition: Definition = engine.definition.model_validate({"backend": backend, **fields} if needs_name else fields)
    return definition


def make_engine(backend: str) -> dict[str, Any]:
    engine = ENGINES[backend]
    cases = {name: _case(engine, name, fields) for name, fields in DEFINITIONS[backend].items()}
    return {
        "cases": cases,
        "counts_in_the_spec_hash": sorted(
            field for fields in DEFINITIONS[backend].values() for field in _hashed(backend, fields)
        ),
    }


def _case(engine: Engine[Any], name: str, fields: dict[str, Any]) -> dict[str, Any]:
    definition = definition_of(engine.name, fields)
    docker, process = _wanted(definition, Defaults(IMAGES)), _wanted(definition, Defaults())
    remote = engine.describe_remote(definition)
    case: dict[str, Any] = {
        "definition": fields,
        "docker": {"spec_hash": docker.spec_hash},
        "process": {"spec_hash": process.spec_hash},
        "apis": engine.list_apis(definition),
        "capabilities": engine.derive_capabilities(definition).model_dump(mode="json"),
        "context_length": engine.context_length(definition),
        "files": [
            {"field": each.field, "path": each.full_path, "kind": each.kind, "beside": each.beside}
            for each in engine.list_files(definition)
        ],
        "target_inflight": engine.target_inflight(definition),
        "thinking_control": engine.thinking_control(definition),
    }
    if remote is not None:
        return {**case, "remote": asdict(remote)}
    case["probe"] = asdict(engine.describe_probe(definition))
    if (sleep := engine.describe_sleep(definition)) is not None:
        case["sleep"] = asdict(sleep)
    case["docker"]["container"] = _container(engine, docker, published=name == "minimal")
    case["process"] |= _process(engine, process, PROGRAMS)
    bare = _process(engine, process, {"python": PROGRAMS["python"]})
    if bare["argv"] != case["process"]["argv"]:
        case["process"]["argv_without_llama_server"] = bare["argv"]
    return case


def _wanted(definition: Definition, defaults: Defaults) -> DesiredModel:
    declared = DeclaredModel(definition, definition.model_dump(exclude_unset=True), declared_since=0.0)
    return resolve_desired({MODEL: declared}, StoredMemory(), defaults, generation=1).models[MODEL]


def _container(engine: Engine[Any], want: DesiredModel, *, published: bool) -> dict[str, Any]:
    replica = ReplicaId(MODEL, 0, want.spec_hash, 1)
    name = replica_name(INSTANCE, replica)
    token = replica_token(SECRET, name)
    request = StartRequest(replica, name, want.definition, MODEL, want.image, token, _claims(want))
    launch = engine.render_command(want.definition, docker_context(MODEL, USER, IMAGES, _claimed_gpus(want)))
    models = ({"Type": "bind", "Source": "/srv/models"},)
    host = HostContext(INSTANCE, "roundhouse_engines", published, models, log_mib=10)
    return {"name": name, "create": container_config(request, launch, USER, host, 12.5)}


def _claims(want: DesiredModel) -> dict[str, int]:
    if not want.gpu_count:
        return {HOST: want.memory_mib or 1000}
    return {f"GPU-{number}": want.vram_mib or GPU_MIB for number in range(want.gpu_count)}


def _claimed_gpus(want: DesiredModel) -> tuple[ClaimedGpu, ...]:
    return tuple(ClaimedGpu(uuid, mib, GPU_MIB) for uuid, mib in _claims(want).items() if uuid != HOST)


def _process(engine: Engine[Any], want: DesiredModel, programs: dict[str, str]) -> dict[str, Any]:
    context = RenderContext(
        runtime="process",
        served_name=MODEL,
        models_root=PurePosixPath("/srv/models"),
        host="127.0.0.1",
        port=40001,
        cache_dir=PurePosixPath("/var/lib/roundhouse/cache"),
        executables=programs,
        gpus=_claimed_gpus(want),
    )
    launch = engine.render_command(want.definition, context)
    name = replica_name(INSTANCE, ReplicaId(MODEL, 0, want.spec_hash, 1))
    gpus = [Gpu(f"GPU-{number}", number, "fake", GPU_MIB) for number in range(want.gpu_count)]
    return {
        "argv": launch.argv,
        "environment": {**launch.env, **visible_gpus(gpus), **mark_variables(INSTANCE, name, "5" * 32)},
        "token_variable": launch.token_env,
    }


def _hashed(backend: str, fields: dict[str, Any]) -> set[str]:
    """Fields that change the spec hash when they are left out of this definition; all else must not restart engines."""
    whole = _wanted(definition_of(backend, fields), Defaults(IMAGES)).spec_hash
    counted = set()
    for field in fields:
        try:
            without = definition_of(backend, {name: value for name, value in fields.items() if name != field})
        except ValidationError:
            continue
        if _wanted(without, Defaults(IMAGES)).spec_hash != whole:
            counted.add(field)
    return counted
