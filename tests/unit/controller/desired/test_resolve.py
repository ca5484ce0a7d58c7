"""Which statement rules, and what it makes of the definition."""

from __future__ import annotations

from typing import Any, Self

import pytest
from pydantic import ValidationError, model_validator

from contract.override import Override
from controller.desired.resolve import DeclaredModel, Defaults, fitting_params, resolve_desired
from controller.engines import ENGINES
from controller.engines.llama_server import LlamaServerDefinition
from controller.engines.options import Hashed, list_options
from controller.engines.stub import StubDefinition
from controller.state import DesiredModel
from controller.state_dir import StoredState

IMAGES = {"llama-server": "roundhouse/llama-server:latest", "worker": "roundhouse/worker:latest"}


def _raw(**fields: Any) -> dict[str, Any]:
    return {"backend": "llama_server", "model_path": "m.gguf", **fields}


def _resolved(raw: dict[str, Any], override: Override | None = None, demanded_at: float | None = None) -> DesiredModel:
    declared = {"m": DeclaredModel(LlamaServerDefinition.model_validate(raw), raw, declared_since=1.0)}
    overrides = {"m": override} if override else {}
    demand = {} if demanded_at is None else {"m": demanded_at}
    stored = StoredState(overrides=overrides, demand=demand)
    return resolve_desired(declared, stored, Defaults(IMAGES), generation=1).models["m"]


def _load(raw: dict[str, Any], **statement: Any) -> Override:
    return Override.from_statement(raw, model="m", action="load", at=10.0, **statement)


def _unload(raw: dict[str, Any], **statement: Any) -> Override:
    return Override.from_statement(raw, model="m", action="unload", at=10.0, **statement)


def test_the_file_rules_without_an_override() -> None:
    assert _resolved(_raw(replicas=2)).replicas == 2
    off = _resolved(_raw(enabled=False))
    assert (off.replicas, off.statement.reason, off.drain_ends) == (0, "enabled: false in the files", True)
    on = _resolved(_raw())
    assert (on.statement.kind, on.statement.reason) == ("file", "enabled in the files")
    fields = {"vram_mib": 1024, "memory_mib": 512, "idle_ttl_s": 60.0, "min_residency_s": 7.0, "pinned": True}
    wanted = _resolved(_raw(**fields))
    assert {name: getattr(wanted, name) for name in fields} == fields
    assert wanted.in_files == wanted.definition


def test_the_defaults_of_the_settings_are_those_of_fields_that_are_left_out() -> None:
    raw = _raw()
    declared = {"m": DeclaredModel(LlamaServerDefinition.model_validate(raw), raw, declared_since=1.0)}
    defaults = Defaults(start_timeout_s=11.0, drain_timeout_s=12.0, swap_wait_s=13.0, preflight_recheck_s=14.0)
    state = resolve_desired(declared, StoredState(paused=True), defaults, generation=3)
    model = state.models["m"]
    assert (model.start_timeout_s, model.drain_timeout_s, model.image) == (11.0, 12.0, None)
    assert (state.swap_wait_s, state.preflight_recheck_s, state.generation, state.paused) == (13.0, 14.0, 3, True)
    own = _resolved(_raw(start_timeout_s=5.0, drain_timeout_s=0.0))
    assert (own.start_timeout_s, own.drain_timeout_s) == (5.0, 0.0)
    assert own.image == IMAGES["llama-server"]


@pytest.mark.parametrize(
    ("raw", "hold", "words"),
    [
        (_raw(), False, "unload ordered by an operator"),
        (_raw(autoload=True), False, "unload ordered by an operator; the next request loads it"),
        (_raw(autoload=True), True, "unload ordered by an operator"),
    ],
)
def test_an_unload_says_whether_a_request_ends_it(raw: dict[str, Any], hold: bool, words: str) -> None:
    unloaded = _resolved(raw, _unload(raw, hold=hold, actor="an operator"))
    assert (unloaded.statement.reason, unloaded.drain_ends) == (words, False), "its drain never ends by itself"
    assert unloaded.autoload == ("next request" in words)


def test_autoload_waits_for_demand() -> None:
    raw = _raw(enabled=False, autoload=True)
    asleep = _resolved(raw)
    assert (asleep.replicas, asleep.statement.reason) == (0, "autoload: no request asked for it yet")
    asked = _resolved(raw, demanded_at=5.0)
    assert (asked.replicas, asked.statement.kind, asked.statement.since) == (1, "autoload", 5.0)


def test_a_load_rules_over_enabled_false_and_brings_its_replicas_and_parameters() -> None:
    raw = _raw(enabled=False, llama_server_n_ctx=4096, replica_max=4)
    loaded = _resolved(raw, _load(raw, replicas=3, params={"llama_server_n_ctx": None}))
    assert loaded.replicas == 3
    assert isinstance(loaded.definition, LlamaServerDefinition)
    assert loaded.definition.llama_server_n_ctx is None
    assert loaded.spec_hash != _resolved(raw).spec_hash
    assert (loaded.statement.kind, loaded.statement.since) == ("load", 10.0)


def test_replica_max_bounds_what_is_asked_for() -> None:
    assert _resolved(_raw(replica_max=2), _load(_raw(replica_max=2), replicas=9)).replicas == 2
    assert _resolved(_raw(replicas=3), _load(_raw(replicas=3), replicas=9)).replicas == 3


@pytest.mark.parametrize("edit", [{"enabled": False}, {"replicas": 2}])
def test_an_edit_of_enabled_or_replicas_ends_the_statement(edit: dict[str, Any]) -> None:
    raw = _raw()
    assert _resolved(raw, _unload(raw)).replicas == 0
    assert _resolved(raw | edit, _unload(raw)).statement.kind == "file"


def test_an_edit_of_a_parameter_ends_that_parameter_alone() -> None:
    raw = _raw(llama_server_n_ctx=4096, llama_server_threads=1)
    said = _load(raw, params={"llama_server_n_ctx": 512, "llama_server_threads": 2})
    edited = _resolved(raw | {"llama_server_n_ctx": 8192}, said)
    assert isinstance(edited.definition, LlamaServerDefinition)
    assert edited.definition.llama_server_n_ctx == 8192
    assert edited.definition.llama_server_threads == 2
    assert edited.statement.kind == "load"


def test_an_unload_holds_against_autoload_unless_it_says_otherwise() -> None:
    raw = _raw(enabled=False, autoload=True)
    assert _resolved(raw, _unload(raw), demanded_at=20.0).replicas == 0
    assert not _resolved(raw, _unload(raw)).autoload
    assert _resolved(raw, _unload(raw, hold=False)).autoload
    assert _resolved(raw).autoload
    assert _resolved(raw, _unload(raw, hold=False), demanded_at=20.0).replicas == 1
    assert _resolved(raw, _unload(raw, hold=False)).replicas == 0


SCHEDULING: dict[str, Any] = {
    "aliases": ["x"], "replica_max": 9, "vram_mib": 5, "enabled": False, "autoload": True, "start_timeout_s": 9.0,
    "drain_timeout_s": 9.0, "replicas": 3, "hosts": ["a"],
}  # fmt: skip
OF_ENGINES: dict[str, Any] = {
    "model_path": "n.gguf", "llama_server_n_ctx": 9, "env": {"A": "b"}, "extra_args": ["-v"], "gpus": 1,
    "image": "other", "target_inflight": 2, "llama_server_embedding": True,
}  # fmt: skip


@pytest.mark.parametrize(("field", "value"), [*SCHEDULING.items(), *OF_ENGINES.items()])
def test_the_spec_hash_covers_what_touches_the_engine_alone(field: str, value: Any) -> None:
    changes = _resolved(_raw() | {field: value}).spec_hash != _resolved(_raw()).spec_hash
    assert changes is (field in OF_ENGINES)


def test_gpus_are_a_number_or_named_by_index_or_uuid() -> None:
    assert (_resolved(_raw(gpus=2)).gpu_count, _resolved(_raw(gpus=2)).gpu_choice) == (2, ())
    chosen = _resolved(_raw(gpus=[0, "GPU-a"]))
    assert (chosen.gpu_count, chosen.gpu_choice) == (2, ("0", "GPU-a"))
    assert _resolved(_raw()).gpu_count == 0


def test_a_device_says_how_many_gpus_where_gpus_does_not() -> None:
    assert [_resolved(_raw(device=device)).gpu_count for device in ("cuda", "cpu", "auto", None)] == [1, 0, 0, 0]
    assert _resolved(_raw(device="cuda", gpus=2)).gpu_count == 2
    assert _resolved(_raw(device="cuda")).spec_hash == _resolved(_raw(gpus=1)).spec_hash
    assert _resolved(_raw(device="auto")).spec_hash == _resolved(_raw()).spec_hash
    for device, gpus in (("cpu", 1), ("cpu", [0]), ("cuda", 0)):
        with pytest.raises(ValidationError, match="gpus says otherwise"):
            _resolved(_raw(device=device, gpus=gpus))


def test_every_field_of_every_backend_is_hashed_or_known_to_be_scheduling() -> None:
    scheduling = {
        "backend", "enabled", "autoload", "replicas", "replica_max", "target_inflight", "aliases", "gpus", "vram_mib",
        "start_timeout_s", "drain_timeout_s", "remote_apis", "modalities", "media_urls", "multi_turn", "thinking_modes",
        "device", "queue_limit", "tools", "structured_output", "matryoshka", "max_tokens_field", "thinking_field",
        "role", "idle_ttl_s", "min_residency_s", "pinned", "remote_fields", "session_cache", "source", "hosts",
    }  # fmt: skip
    hashed = {"model_path", "env", "extra_args", "image", "memory_mib"}
    for engine in ENGINES.values():
        fields = set(engine.definition.model_fields)
        options = list_options(engine.definition)
        own = {option.name for option in options if option.hashed is not Hashed.NEVER}
        if engine.name in ("vllm", "vllm_serve"):
            own.add("prompt_format")  # names the template that is there, and changes nothing
        assert fields == (fields & scheduling) | (fields & hashed) | own, engine.name


class Paired(StubDefinition):
    """`stub_text` and `stub_tokens` come together, and exclude `vram_mib`."""

    pair: int | None = None
    other: int | None = None

    @model_validator(mode="after")
    def _together(self) -> Self:
        if (self.pair is None) != (self.other is None):
            raise ValueError("pair and other come together")
        if self.pair is not None and self.vram_mib is not None:
            raise ValueError("pair and vram_mib exclude each other")
        return self


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({}, []),
        ({"target_inflight": 2, "nobodys": 1}, ["target_inflight"]),
        ({"target_inflight": 0, "vram_mib": 4}, ["vram_mib"]),
        ({"pair": 1, "other": 2, "target_inflight": 0}, ["other", "pair"]),
        ({"pair": 1, "vram_mib": 5, "other": 2}, ["other", "pair"]),
        ({"pair": 1, "target_inflight": 3}, ["target_inflight"]),
    ],
)
def test_of_a_loads_parameters_as_many_are_kept_as_fit_together(params: dict[str, Any], kept: list[str]) -> None:
    assert sorted(fitting_params(Paired(backend="stub"), params)) == kept


def test_a_remote_model_has_no_replicas() -> None:
    remote = {"backend": "openai_remote", "base_url": "http://h/v1"}
    kind = ENGINES["openai_remote"].definition
    assert kind.model_validate(remote | {"replica_max": 1}).replica_max == 1
    for wrong in ({"replica_max": 4}, {"replicas": 2, "replica_max": 2}):
        with pytest.raises(ValidationError, match="to a remote model"):
            kind.model_validate(remote | wrong)
