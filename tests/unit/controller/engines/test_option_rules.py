"""What single options mean beyond an argument: memory, files, rules between options."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import pytest
from pydantic import ValidationError

from controller.artifacts.facts import Gguf
from controller.engines import ENGINES
from controller.engines.base import ClaimedGpu, RenderContext
from controller.engines.memory import MIB, Prediction
from tests.support.config_files import parse_text, problems_of
from tests.unit.controller.engines.test_memory_formulas import FOLDER, GIB, gemma, llama_3_8b, predicted, reason, server

CTX = RenderContext("docker", "m", PurePosixPath("/models"), "0.0.0.0", 8000, PurePosixPath("/cache"))


def _argv(backend: str, ctx: RenderContext = CTX, **fields: Any) -> list[str]:
    engine = ENGINES[backend]
    definition = engine.definition.model_validate({"backend": backend, "model_path": "m", **fields})
    return list(engine.render_command(definition, ctx).argv)


def test_batches_and_whole_windows_count_as_their_arguments_do() -> None:
    for name, flag, value in (("n_batch", "-b", 256), ("n_ubatch", "-ub", 2048)):
        by_argument = server(llama_server_n_ctx=8192, extra_args=[flag, str(value)])
        option: dict[str, Any] = {f"llama_server_{name}": value}
        assert server(llama_server_n_ctx=8192, **option) == by_argument
    assert server(llama_server_n_ubatch=2048).host.compute > server().host.compute
    windows: dict[str, Any] = {"llama_server_n_ctx": 32768, "artifact": gemma()}
    assert server(**windows, llama_server_swa_full=True) == server(**windows, extra_args=["--swa-full"])


def test_an_adapter_is_beside_the_model() -> None:
    adapter = Gguf(50 * MIB, "llama", {}, (MIB,) * 32, 0, 0, 0, 0, False)
    fields = {"model_path": "a.gguf", "llama_server_lora": ["b.gguf", "c.gguf"]}
    engine = ENGINES["llama_server"]
    for gpus in (0, 1, 2):
        definition = engine.definition.model_validate({**fields, "gpus": gpus})
        assert engine.list_artifacts(definition) == ("a.gguf", "b.gguf", "c.gguf")
        adapted = engine.predict_memory(definition, {"a.gguf": llama_3_8b(), "b.gguf": adapter, "c.gguf": adapter})
        assert isinstance(adapted, Prediction)
        alone = server(gpus=gpus)
        gpu, host = adapted.gpu.total - alone.gpu.total, adapted.host.total - alone.host.total
        assert (gpu, host) == ((64 * MIB, 0) if gpus else (0, 64 * MIB))
        scaled = definition.model_copy(update={"llama_server_lora_scales": [0.0, 2.0]})
        artifacts = {"a.gguf": llama_3_8b(), "b.gguf": adapter, "c.gguf": adapter}
        assert engine.predict_memory(scaled, artifacts) == adapted, "an adapter is loaded whatever its scale"
    definition = engine.definition.model_validate({**fields, "gpus": 1})
    assert "b.gguf: was not read yet" in str(engine.predict_memory(definition, {"a.gguf": llama_3_8b()}))


def test_a_draft_model_has_layers_and_a_cache_of_its_own() -> None:
    fields: dict[str, Any] = {"gpus": 1, "llama_server_n_ctx": 8192, "llama_server_draft_model_path": "draft.gguf"}
    whole = server(**fields)
    assert server(**fields, llama_server_draft_n_gpu_layers=0).gpu.weights < whole.gpu.weights
    small = server(**fields, llama_server_draft_cache_type_k="q8_0", llama_server_draft_cache_type_v="q8_0")
    assert small.gpu.kv_cache == whole.gpu.kv_cache - GIB + GIB * 34 // 64
    simple = server(**fields, llama_server_spec_type="draft-simple")
    assert simple.gpu.weights == whole.gpu.weights


def test_a_projector_may_stay_on_the_host() -> None:
    fields = {"image_size": 896, "patch_size": 14, "embedding_length": 1152, "feed_forward_length": 4304}
    said = {f"clip.vision.{name}": value for name, value in {**fields, "attention.head_count": 16}.items()}
    clip = Gguf(MIB, "clip", said, (5 * MIB,), 0, 0, 0, 0, True)
    engine = ENGINES["llama_server"]

    def seeing(**options: Any) -> Prediction:
        definition = engine.definition.model_validate(
            {"model_path": "a", "llama_server_mmproj": "b", "gpus": 1, **options}
        )
        forecast = engine.predict_memory(definition, {"a": llama_3_8b(), "b": clip})
        assert isinstance(forecast, Prediction)
        return forecast

    on_gpu, on_host = seeing(), seeing(llama_server_mmproj_offload=False)
    assert on_gpu.gpu.weights - on_host.gpu.weights == on_host.host.weights - on_gpu.host.weights == 5 * MIB


def test_speculation_without_a_draft_model_verifies_more_tokens_and_takes_no_weights() -> None:
    plain = server(llama_server_n_ctx=8192, llama_server_n_ubatch=2048)
    fields: dict[str, Any] = {"llama_server_n_ctx": 8192, "llama_server_n_ubatch": 2048}
    repeating = server(**fields, llama_server_spec_type="ngram-mod")
    assert repeating.host.weights == plain.host.weights
    assert repeating.host.compute >= plain.host.compute
    draft = {"llama_server_draft_model_path": "d.gguf"}
    for kind in ("draft-mtp", "draft-eagle3"):
        words = reason("llama_server", llama_3_8b(), model_path="a", llama_server_spec_type=kind, **draft)
        assert words == f"what the layers of {kind} take is not known"


@pytest.mark.parametrize(
    ("backend", "fields"),
    [
        ("llama_server", {"llama_server_n_cpu_moe": 3}),
        ("llama_server", {"llama_server_cpu_moe": True}),
        ("llama_server", {"llama_server_override_tensor": "exps=CPU"}),
        ("llama_server", {"llama_server_split_mode": "row"}),
        ("llama_server", {"llama_server_main_gpu": 1}),
        ("llama_server", {"llama_server_tensor_split": [3, 1]}),
        ("llama_server", {"llama_server_kv_offload": False}),
        ("vllm", {"vllm_cpu_offload_gb": 4}),
        ("vllm_serve", {"vllm_pipeline_parallel_size": 2}),
    ],
)
def test_options_that_no_formula_follows_leave_no_forecast(backend: str, fields: dict[str, Any]) -> None:
    artifact = llama_3_8b() if backend == "llama_server" else FOLDER
    assert reason(backend, artifact, model_path="m", gpus=2, **fields) == f"{next(iter(fields))} changes what is where"


def test_what_vllm_keeps_in_main_memory_and_computes_at_a_time_counts() -> None:
    fields: dict[str, Any] = {"model_path": "m", "vllm_kv_cache_memory_bytes": GIB}
    for gpus in (0, 1):
        plain = predicted("vllm", FOLDER, gpus=gpus, **fields)
        offloading = predicted("vllm", FOLDER, gpus=gpus, vllm_kv_offloading_size=2.5, **fields)
        assert offloading.host.kv_cache - plain.host.kv_cache == 5 * GIB // 2
    plain = predicted("vllm", FOLDER, gpus=1, **fields)
    wider = predicted("vllm", FOLDER, gpus=1, vllm_max_num_batched_tokens=16384, **fields)
    assert wider.gpu.compute - plain.gpu.compute == 8192 * 3 * (4096 + 14336) * 2


def test_declared_shares_of_gpus_stand_in_for_claims() -> None:
    gpus = tuple(ClaimedGpu(f"GPU-{number}", 1000, 2000) for number in range(2))
    argv = _argv("llama_server", replace(CTX, gpus=gpus), gpus=2, llama_server_tensor_split=[3, 1])
    assert [argv[place + 1] for place, each in enumerate(argv) if each == "--tensor-split"] == ["3.0,1.0"]


def test_groups_of_layers_divide_the_gpus() -> None:
    argv = _argv("vllm_serve", gpus=4, vllm_pipeline_parallel_size=2)
    assert argv[argv.index("--tensor-parallel-size") + 1] == "2"
    assert argv[argv.index("--pipeline-parallel-size") + 1] == "2"
    declared = _argv("vllm_serve", gpus=4, vllm_pipeline_parallel_size=2, vllm_tensor_parallel_size=1)
    assert declared[declared.index("--tensor-parallel-size") + 1] == "1"


def test_further_entries_of_a_speculation() -> None:
    fields: dict[str, Any] = {"vllm_speculative_method": "ngram", "vllm_speculative_config": {"prompt_lookup_max": 4}}
    argv = _argv("vllm", **fields)
    assert argv[argv.index("--speculative-config") + 1] == (
        '{"prompt_lookup_max":4,"method":"ngram","num_speculative_tokens":1}'
    )
    assert "--speculative-config" not in _argv("vllm", vllm_speculative_config={"prompt_lookup_max": 4})


@pytest.mark.parametrize(
    ("backend", "fields", "words"),
    [
        ("llama_server", {"llama_server_spec_type": "draft-eagle3"}, "which needs `llama_server_draft_model_path`"),
        (
            "llama_server",
            {"llama_server_chat_template": "chatml", "llama_server_chat_template_file": "t.jinja"},
            "llama_server_chat_template and llama_server_chat_template_file exclude each other",
        ),
        ("vllm", {"gpus": 4, "vllm_pipeline_parallel_size": 8}, "too many for the 4 GPUs"),
        ("vllm", {"gpus": 4, "vllm_pipeline_parallel_size": 2, "vllm_tensor_parallel_size": 4}, "too many for the 4"),
        ("vllm", {"vllm_speculative_config": {"model": "org/x"}}, "does not take model: set `vllm_speculative_model`"),
        ("vllm", {"vllm_hf_overrides": {"text_config": [{"auto_map": {}}]}}, "which needs `vllm_trust_remote_code"),
        ("vllm", {"vllm_speculative_method": "custom_class"}, "which needs `vllm_trust_remote_code"),
    ],
)
def test_what_does_not_fit_together_is_refused(backend: str, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words.replace("(", r"\(")):
        ENGINES[backend].definition.model_validate({"backend": backend, "model_path": "m", **fields})


def test_code_by_override_is_taken_where_the_models_code_is_trusted() -> None:
    fields: dict[str, Any] = {"vllm_hf_overrides": {"auto_map": {}}, "vllm_trust_remote_code": True}
    assert "--hf-overrides" in _argv("vllm", **fields)
    fields = {"vllm_speculative_method": "custom_class", "vllm_speculative_model": "m.Own"}
    assert "--speculative-config" in _argv("vllm", **fields, vllm_trust_remote_code=True)


def test_a_shifted_context_cuts_off_the_beginning_of_prompts() -> None:
    engine = ENGINES["llama_server"]
    artifacts = {"m.gguf": replace(llama_3_8b(), longest_token=64)}
    plain = engine.definition.model_validate({"model_path": "m.gguf"})
    shifted = engine.definition.model_validate({"model_path": "m.gguf", "llama_server_context_shift": True})
    assert (engine.longest_token(plain, artifacts), engine.longest_token(shifted, artifacts)) == (64, None)


LORA = """
    models:
      m:
        model_path: m.gguf
        llama_server_lora: [{}]
"""


def test_paths_in_lists_are_written_in_one_way_and_refused_by_their_number() -> None:
    parsed = parse_text(LORA.format("./a//b.gguf, /srv/models/c.gguf"))
    assert parsed.definitions["m"].model_dump()["llama_server_lora"] == ["a/b.gguf", "c.gguf"]
    [problem] = problems_of(LORA.format("a.gguf, /etc/b.gguf"))
    assert problem.startswith("desired-state/models.yaml:5: models.m.llama_server_lora[1]: ")
    assert "lies outside" in problem


NAMED = """
    models:
      m:
        backend: vllm_serve
        model_path: m
        vllm_lora_modules: {{french: {}, terse: b}}
"""


def test_paths_with_names_are_written_in_one_way_and_refused_by_their_name() -> None:
    parsed = parse_text(NAMED.format("/srv/models/c"))
    assert parsed.definitions["m"].model_dump()["vllm_lora_modules"] == {"french": "c", "terse": "b"}
    [problem] = problems_of(NAMED.format("/etc/b"))
    assert problem.startswith("desired-state/models.yaml:6: models.m.vllm_lora_modules.french: ")
    assert "lies outside" in problem
