"""Every command line that is rendered for llama-server is taken by its real parser, and by the embedded one's."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.desired.resolve import with_params
from controller.engines import ENGINES
from controller.engines.base import ClaimedGpu, Launch, RenderContext
from controller.engines.llama_server import LlamaServerDefinition
from controller.engines.options import list_options
from tests.support.campaign import campaign_count
from tests.support.installed_engines import needed, program
from tests.support.option_values import NAMES, sample_value, tried_options
from worker.launchers.llama_server_flags import OPTIONS, UsageError, parse_flags, value_of

pytestmark = pytest.mark.engines

ENGINE = ENGINES["llama_server"]
COUNTS = st.integers(1, 2**31 - 1)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    **tried_options(LlamaServerDefinition),
    # The parser itself reads the template, knows its own names of others, and takes as many threads as a machine has.
    "llama_server_chat_template_file": st.just("template.jinja"),
    "llama_server_chat_template": st.sampled_from(["chatml", "{{ messages }}"]),
    "llama_server_override_tensor": st.just("exps=CPU"),
    "llama_server_threads": st.integers(1, 512),
    "llama_server_threads_batch": st.integers(1, 512),
    # A colon separates a path from its scale.
    "llama_server_lora": st.lists(NAMES.filter(lambda name: ":" not in name), min_size=1, max_size=3),
    "target_inflight": st.integers(1, 256),
}
REFUSED_EMBEDDED = {
    option.name
    for option in list_options(LlamaServerDefinition)
    if option.flag is not None and not set(option.flag.name.split("/")) <= set(OPTIONS)
}
LOADS: dict[str, st.SearchStrategy[Any]] = {
    "llama_server_n_ctx": COUNTS,
    "llama_server_image_max_tokens": COUNTS,
    "llama_server_spec_type": st.sampled_from(["draft-mtp", None]),
    "llama_server_spec_draft_n_max": st.integers(1, 6),
    "llama_server_spec_draft_p_min": st.floats(0, 1),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the one file lies that the parser itself reads."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "template.jinja").write_text("{{ messages }}")
    return folder


@st.composite
def definitions(draw: st.DrawFn, tried: Mapping[str, st.SearchStrategy[Any]] = FIELDS) -> LlamaServerDefinition:
    fields = draw(st.fixed_dictionaries({"model_path": NAMES}, optional=dict(tried)))
    if "llama_server_chat_template" in fields:
        fields.pop("llama_server_chat_template_file", None)
    if "llama_server_lora" in fields and "llama_server_lora_scales" in fields:
        adapters = len(fields["llama_server_lora"])
        fields["llama_server_lora_scales"] = fields["llama_server_lora_scales"][:adapters]
    if fields.get("llama_server_spec_type") in ("draft-simple", "draft-eagle3"):
        fields.setdefault("llama_server_draft_model_path", "draft.gguf")
    declared = LlamaServerDefinition.model_validate(fields)
    load = draw(st.fixed_dictionaries({}, optional=LOADS))
    assert ENGINE.load_faults(load) == []
    loaded = with_params(declared, load)
    assert isinstance(loaded, LlamaServerDefinition)
    return loaded


CLAIMS = st.lists(st.integers(1, 2**20), max_size=17)


def rendered(
    definition: LlamaServerDefinition, models: Path, served: str, executables: dict[str, str], claims: Sequence[int]
) -> Launch:
    root = PurePosixPath(str(models))
    gpus = tuple(ClaimedGpu(f"GPU-{number}", mib, 2**20) for number, mib in enumerate(claims))
    launch = ENGINE.render_command(
        definition, RenderContext("process", served, root, "::1", 1, root / "cache", executables, gpus=gpus)
    )
    for folder in launch.folders:  # as the runtime does; the parser looks at them
        Path(folder).mkdir(parents=True, exist_ok=True)
    return launch


def test_every_field_of_a_load_is_tried() -> None:
    assert set(LOADS) == {field.name for field in ENGINE.load_fields}


def refusal(arguments: Sequence[str]) -> str | None:
    """What the real parser says against a command line. It reads all of it before it comes to the version."""
    done = subprocess.run([program(), *arguments, "--version"], check=False, capture_output=True, text=True, timeout=60)
    return done.stderr if done.returncode else None


@settings(max_examples=campaign_count(15, 400))
@given(definition=definitions(), served=NAMES, claims=CLAIMS)
def test_the_program_takes_it(models: Path, definition: LlamaServerDefinition, served: str, claims: list[int]) -> None:
    needed("binary")
    launch = rendered(definition, models, served, {"llama-server": str(program())}, claims)
    assert refusal(launch.argv[1:]) is None


@settings(max_examples=campaign_count(50, 2_000))
@given(
    definition=definitions({name: each for name, each in FIELDS.items() if name not in REFUSED_EMBEDDED}),
    served=NAMES,
    claims=CLAIMS,
)
def test_the_embedded_one_takes_it_and_means_the_same(
    models: Path, definition: LlamaServerDefinition, served: str, claims: list[int]
) -> None:
    launch = rendered(definition, models, served, {"python": "/usr/bin/python3"}, claims)
    told = parse_flags(launch.argv[launch.argv.index("--") + 1 :], {})
    assert value_of(told, "model.path") == models / definition.model_path
    assert value_of(told, "n_parallel") == (definition.target_inflight or 4)
    shares = definition.llama_server_tensor_split or (claims if 1 < len(claims) < 16 else None)
    if shares is None:
        assert value_of(told, "tensor_split") is None
    else:
        split = [round(each, 6) for each in shares]
        assert value_of(told, "tensor_split") == [*split, *[0.0] * (128 - len(split))]
    assert value_of(told, "cache_ram_mib") == (definition.llama_server_cache_ram_mib or 0)
    for field, attribute in (("llama_server_n_ctx", "n_ctx"), ("llama_server_threads", "cpuparams.n_threads")):
        said = getattr(definition, field)
        assert said is None or value_of(told, attribute) == said, field


@pytest.mark.parametrize("name", sorted(REFUSED_EMBEDDED))
def test_what_the_embedded_one_does_not_take_it_refuses_by_name(models: Path, name: str) -> None:
    [option] = [each for each in list_options(LlamaServerDefinition) if each.name == name]
    assert option.flag is not None
    fields = {"model_path": "m", name: sample_value(option)}
    launch = rendered(LlamaServerDefinition.model_validate(fields), models, "m", {"python": "/usr/bin/python3"}, [])
    with pytest.raises(UsageError, match=r"does not take --.*name a llama-server program instead"):
        parse_flags(launch.argv[launch.argv.index("--") + 1 :], {})


@pytest.mark.parametrize("count", [1, 2])
def test_a_program_without_cuda_refuses_gpus_and_the_refusal_is_understood(models: Path, count: int) -> None:
    needed("binary")
    declared = LlamaServerDefinition(model_path="m", gpus=count)
    said = refusal(rendered(declared, models, "m", {"llama-server": str(program())}, []).argv[1:])
    assert said is not None
    assert 'error while handling argument "--device": invalid device: CUDA0' in said
    verdict = ENGINE.explain_exit(1, said)
    assert verdict is not None
    assert (verdict.message.partition(":")[0], verdict.permanent) == ("llama.cpp does not see its GPU", False)


def test_a_program_takes_other_devices_that_a_definition_names(models: Path) -> None:
    needed("binary")
    declared = LlamaServerDefinition(model_path="m", gpus=1, extra_args=["--device", "none"])
    assert refusal(rendered(declared, models, "m", {"llama-server": str(program())}, []).argv[1:]) is None


def test_the_program_refuses_what_is_wrong() -> None:
    needed("binary")
    assert "--no-such-flag" in (refusal(["--no-such-flag"]) or "")
    assert "--ctx-size" in (refusal(["--model", "m", "--ctx-size", "many"]) or "")
    assert refusal(["--model", "m", "--ctx-size", "512"]) is None
