"""What a request may set: one mark at each field, and every inlet by it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field

from contract.admin import ProposedFiles
from contract.declarations import RuntimeDeclaration, RuntimeDeclarations
from contract.desired import Definition, Settable
from contract.keys import KeyDefinition
from controller.artifacts.model_roots import ModelRoots
from controller.config.debounce import DebouncedState
from controller.config.parse import parse_folder, read_folder
from controller.config.runtime_declarations import RequestRules, check_declaration, list_declared_names, read_markers
from controller.engines import ENGINES, REPLICA_ENGINES
from controller.engines.base import Engine
from controller.engines.options import PathFlag, list_options
from controller.engines.stub import StubDefinition
from tests.support.definitions import MODELS_ROOT
from tests.support.dry_runs import DryRunHarness
from tests.support.goldens.definitions import DEFINITIONS

FROM_FILES = {
    "env", "image", "extra_args", "media_urls",
    "llama_server_binary", "llama_server_library_path",
    "vllm_model", "vllm_load_format",
    "vllm_hf_overrides", "vllm_mm_processor_kwargs", "vllm_speculative_config", "vllm_trust_remote_code",
    "vllm_serve_binary", "vllm_serve_library_path",
    "base_url", "health_path", "remote_apis", "api_key_env", "api_key_file",
    "mcp_command", "mcp_network", "mcp_mounts",
}  # fmt: skip
"""Decided by hand: a change of this list is a change of what the scope `admin` can do (docs/security.md)."""


class Unmarked(StubDefinition):
    """A definition with a field that says nothing of requests."""

    stub_further: Annotated[int, "nothing"] = Field(default=1)


def _markers(engine: Engine[Any]) -> Mapping[str, Settable]:
    definition_class: type[Definition] = engine.definition
    return read_markers(definition_class)


def test_every_field_says_whether_a_request_may_set_it() -> None:
    marked: dict[str, set[Settable]] = {}
    classes: list[type[Definition]] = [Definition, *(engine.definition for engine in REPLICA_ENGINES.values())]
    for definition_class in classes:
        markers = read_markers(definition_class)
        assert markers.keys() == definition_class.model_fields.keys()
        for name, marker in markers.items():
            marked.setdefault(name, set()).add(marker)
    assert {name for name, markers in marked.items() if len(markers) > 1} == set(), "one name, one mark"
    assert {name for name, markers in marked.items() if Settable.FROM_FILES in markers} == FROM_FILES
    with pytest.raises(ValueError, match=r"Unmarked\.stub_further has 0 markers `Settable`, and needs one"):
        read_markers(Unmarked)


def test_the_mark_agrees_with_what_else_a_field_declares() -> None:
    for engine in ENGINES.values():
        markers = _markers(engine)
        for option in list_options(engine.definition):
            is_path = isinstance(option.flag, PathFlag)
            assert is_path == (markers[option.name] is Settable.IN_MODELS_FOLDER), option.name
            if option.loadable is not None:
                assert markers[option.name] in (Settable.ALWAYS, Settable.IN_MODELS_FOLDER_OR_DECLARED), option.name
            words = ("path", "file", "binary", "command", "url", "image", "env", "args", "model")
            if markers[option.name] is Settable.ALWAYS and any(word in option.name for word in words):
                assert option.name in NAMED_OTHERWISE, f"{option.name} sounds as if it named a file or a program"


NAMED_OTHERWISE = {
    "vllm_max_model_len",  # a length
    "remote_model",  # a word in requests to an address of the files
    "llama_server_chat_template_kwargs",  # of a template in a sandbox, as of any request
    "vllm_chat_template_kwargs",
    "llama_server_image_min_tokens",  # numbers
    "llama_server_image_max_tokens",
}


def test_no_field_of_a_key_names_a_file_a_command_or_an_address() -> None:
    assert KeyDefinition.model_fields.keys() == {
        "sha256", "scopes", "models", "tools", "tenant", "weight", "service_tiers", "requests_per_minute",
        "tokens_per_minute", "concurrency", "expires",
    }  # fmt: skip


def _problems(fields: dict[str, Any], *trusted: str, name: str = "m") -> list[str | None]:
    declared = RuntimeDeclarations(models={name: RuntimeDeclaration(fields=fields, declared_at=1.0, actor="me")})
    checked = check_declaration(DebouncedState({}, {}), declared, "models", name, MODELS_ROOT, frozenset(trusted))
    return [each.field for each in checked.problems]


def _with_field(backend: str, field: str) -> dict[str, Any]:
    """The least definition that sets the field."""
    [value, *_] = [each[field] for each in DEFINITIONS[backend].values() if field in each]
    other = {"vllm_model": "model_path"}.get(field)
    minimal = {name: each for name, each in DEFINITIONS[backend]["minimal"].items() if name != other}
    return {"backend": backend} | minimal | {field: value}


@pytest.mark.parametrize("backend", ENGINES)
async def test_a_field_of_the_files_is_refused_to_every_request(backend: str, tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text("models: {}\n")
    harness = DryRunHarness(tmp_path)
    markers = _markers(ENGINES[backend])
    for field in (name for name, marker in markers.items() if marker is Settable.FROM_FILES):
        fields = _with_field(backend, field)
        required = {name for name in ("base_url",) if name in fields}
        assert f"models.m.{field}" in _problems(fields, *(required - {field}))
        assert _problems(fields, field, *required) == []
        planned = await harness.of(ProposedFiles(models={"m": fields}))
        assert not planned.ok
        told = {each.field: each.message for each in planned.problems}
        assert told[f"models.m.{field}"] == (
            f"a request may not set it: declare it in the desired-state files, or list `{field}` in "
            "ROUNDHOUSE_TRUSTED_DECLARATIONS"
        )
        assert harness.runtime.calls == [], "nothing was tried"


@pytest.mark.parametrize("backend", ENGINES)
def test_all_else_may_be_set_by_a_request(backend: str) -> None:
    markers = _markers(ENGINES[backend])
    for variant in DEFINITIONS[backend].values():
        fields = {
            name: value
            for name, value in variant.items()
            if markers[name] not in (Settable.FROM_FILES, Settable.IN_MODELS_FOLDER_OR_DECLARED)
            and (name != "source" or backend not in ("stub", "openai_remote"))
        }
        if backend != "openai_remote" and ("model_path" in variant or "vllm_model" not in variant):
            assert _problems({"backend": backend, **fields}) == []


def test_everything_may_be_set_in_a_file(tmp_path: Path) -> None:
    lines = [
        f"  {backend}-{field}: {fields}\n"
        for backend, engine in ENGINES.items()
        for field, marker in _markers(engine).items()
        if marker is Settable.FROM_FILES and (fields := _with_field(backend, field))
    ]
    (tmp_path / "models.yaml").write_text("models:\n" + "".join(lines))
    assert parse_folder(read_folder(tmp_path), MODELS_ROOT).problems == ()


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"backend": "stub", "source": "hf:user/repo:Q4"}, "backend stub loads no files"),
        ({"source": "hf:user/repo-GGUF:Q4_K_M@" + "a" * 40}, None),
        ({"source": "user/repo-GGUF"}, None),
        ({"source": "ollama:qwen3:8b@sha256:" + "a" * 64}, None),
        ({"source": "oci:registry.example/ai/gemma3"}, "a request may name a model of the hub"),
        ({"source": "https://example.org/m.gguf#sha256=" + "a" * 64}, "a request may name a model of the hub"),
        ({"source": "file:/srv/other/m.gguf"}, "a request may name a model of the hub"),
        ({"model_path": "m.gguf", "gpus": [0, "GPU-12345678-aaaa-bbbb-cccc-123456789012", "MIG-GPU-1/2/0"]}, None),
        ({"model_path": "m.gguf", "gpus": ["/dev/nvidia0"]}, "is neither the index nor the UUID of a GPU"),
        ({"model_path": "m.gguf", "gpus": ["all"]}, "is neither the index nor the UUID of a GPU"),
        ({"model_path": "../m.gguf"}, "may not hold `..`"),
        ({"model_path": "a/../../m.gguf"}, "may not hold `..`"),
        ({"model_path": "/etc/m.gguf"}, "lies outside the models folder"),
        ({"model_path": "~/m.gguf"}, "lies outside the models folder"),
        ({"model_path": "~root/m.gguf"}, "your own home folder alone"),
        ({"model_path": "m.gguf", "llama_server_mmproj": "/etc/x.gguf"}, "lies outside the models folder"),
        ({"model_path": "m.gguf", "llama_server_lora": ["a.gguf", "../b.gguf"]}, "may not hold `..`"),
        ({"model_path": "m.gguf", "llama_server_chat_template_file": "/etc/passwd"}, "lies outside the models folder"),
        ({"model_path": "m.gguf", "llama_server_chat_template": "--log-file"}, "begins with a dash"),
        ({"backend": "vllm", "model_path": "m", "vllm_quantization": "--config"}, "begins with a dash"),
        ({"backend": "vllm", "model_path": "m", "vllm_lora_modules": {"a": "/etc"}}, "lies outside the models folder"),
        ({"backend": "vllm", "model_path": "m", "vllm_speculative_method": "custom_class"}, "vllm_trust_remote_code"),
        ({"backend": "vllm", "model_path": "m", "vllm_speculative_model": "/srv/models/x"}, None),
        ({"backend": "vllm", "model_path": "m", "vllm_speculative_model": "/srv/models/../x"}, "may not hold `..`"),
        ({"backend": "vllm", "model_path": "m", "vllm_speculative_model": "/etc/x"}, "lies outside the models folder"),
        ({"backend": "vllm", "model_path": "m", "vllm_speculative_model": "user/other"}, "declared model's `source`"),
        ({"backend": "vllm", "model_path": "m", "vllm_speculative_model": "os.path"}, "declared model's `source`"),
        ({"backend": "mcp", "mcp_command": ["sh"]}, "there are llama_server, "),
    ],
)  # fmt: skip
def test_a_bounded_field_takes_what_lies_within(fields: dict[str, Any], problem: str | None) -> None:
    roots = ModelRoots(MODELS_ROOT.folders, Path("/home/me"))
    declared = RuntimeDeclarations(models={"m": RuntimeDeclaration(fields=fields, declared_at=1.0, actor="me")})
    found = check_declaration(DebouncedState({}, {}), declared, "models", "m", roots).problems
    assert bool(found) == (problem is not None), found
    assert problem is None or any(problem in each.message for each in found), found


def test_the_assistant_of_a_request_is_one_that_is_declared() -> None:
    vllm = ENGINES["vllm"].definition
    sourced = vllm.model_validate({"backend": "vllm", "source": "hf:user/assistant@main", "model_path": "m"})
    naming = vllm.model_validate({"backend": "vllm", "model_path": "m", "vllm_speculative_model": "/opt/theirs"})
    names = list_declared_names([sourced, naming], ["hf:user/third:Q4", "ollama:x", "nonsense", None, 3])
    assert names == {"user/assistant", "/opt/theirs", "user/third"}
    rules = RequestRules(MODELS_ROOT, declared_names=names)
    for name in (*names, None):
        assert [*rules.find_refusals(vllm, {"vllm_speculative_model": name})] == []
    [(field, reason)] = rules.find_refusals(vllm, {"vllm_speculative_model": "user/fourth"})
    assert (field, "user/fourth" in reason) == ("vllm_speculative_model", False)
    assert [*rules.list_bounded_paths(vllm, {"model_path": "m", "vllm_speculative_model": "/srv/models/a"})] == [
        ("model_path", "m"),
        ("vllm_speculative_model", "/srv/models/a"),
    ]
