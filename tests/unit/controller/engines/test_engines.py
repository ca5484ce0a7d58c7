"""What each backend renders, checks and explains."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import pytest

from controller.engines import ENGINES, resolve_backend
from controller.engines.base import ClaimedGpu, RenderContext

DOCKER = RenderContext(
    runtime="docker",
    served_name="chat",
    models_root=PurePosixPath("/models"),
    host="0.0.0.0",
    port=8000,
    cache_dir=PurePosixPath("/cache"),
    images={"llama-server": "img/llama", "worker": "img/worker"},
)
PROCESS = RenderContext(
    runtime="process",
    served_name="chat",
    models_root=PurePosixPath("/srv/models"),
    host="127.0.0.1",
    port=4242,
    cache_dir=PurePosixPath("/var/cache"),
    executables={"python": "/venv/bin/python"},
)


def _launch(backend: str, ctx: RenderContext, **fields: Any) -> tuple[list[str], str | None]:
    engine = ENGINES[backend]
    launch = engine.render_command(engine.definition.model_validate({"backend": backend, **fields}), ctx)
    return list(launch.argv), launch.image


def test_llama_server_in_a_container() -> None:
    argv, image = _launch(
        "llama_server",
        DOCKER,
        model_path="a/b.gguf",
        llama_server_n_ctx=4096,
        llama_server_mmproj="a/mm.gguf",
        llama_server_spec_type="draft-mtp",
        llama_server_spec_draft_p_min=0.25,
        target_inflight=2,
        extra_args=["--no-warmup"],
    )
    assert image == "img/llama"
    assert argv == [
        *("/app/llama-server", "--model", "/models/a/b.gguf", "--alias", "chat", "--host", "0.0.0.0", "--port", "8000"),
        *("--parallel", "2", "--kv-unified", "--fit", "off", "--metrics", "--slots", "--jinja", "--no-webui"),
        *("--cache-ram", "0", "--ctx-size", "4096", "--flash-attn", "auto", "--spec-type", "draft-mtp"),
        *("--spec-draft-n-max", "2", "--spec-draft-p-min", "0.25"),
        *("--mmproj", "/models/a/mm.gguf", "--no-warmup"),
    ]


@pytest.mark.parametrize("backend", ["llama_server", "llama_cpp"])
def test_llama_cpp_splits_a_model_over_gpus_as_they_are_claimed(backend: str) -> None:
    def rendered(*claims: int) -> list[str]:
        gpus = tuple(ClaimedGpu(f"GPU-{number}", mib, 80_000) for number, mib in enumerate(claims))
        ctx = replace(DOCKER, gpus=gpus)
        return _launch(backend, ctx, model_path="m.gguf", gpus=len(claims), extra_args=["--tensor-split", "1,0"])[0]

    argv = rendered(12_000, 24_000)
    assert argv[argv.index("--tensor-split") + 1] == "12000,24000", "llama.cpp's own default is by free memory"
    assert argv[-2:] == ["--tensor-split", "1,0"], "what is declared comes last, and rules"
    assert rendered(*[100] * 15).count("--tensor-split") == 2
    for claims in ([], [12_000], [100] * 16):
        assert rendered(*claims).count("--tensor-split") == 1, "its parser takes fifteen at most"


def test_llama_server_keeps_as_many_prompts_in_main_memory_as_is_declared() -> None:
    argv, _ = _launch("llama_server", DOCKER, model_path="m.gguf", llama_server_cache_ram_mib=2048)
    assert argv[argv.index("--cache-ram") + 1] == "2048"
    fields = {"model_path": "m.gguf", "memory_mib": 4096}
    definition = ENGINES["llama_server"].definition
    assert definition.model_validate({**fields, "llama_server_cache_ram_mib": 4095})
    with pytest.raises(ValueError, match="llama_server_cache_ram_mib is a part of memory_mib, so it is less than 4096"):
        definition.model_validate({**fields, "llama_server_cache_ram_mib": 4096})


@pytest.mark.parametrize(("context", "cache"), [(DOCKER, "/cache"), (PROCESS, "/var/cache")])
def test_each_replica_of_llama_server_saves_its_slots_into_a_folder_of_its_own(
    context: RenderContext, cache: str
) -> None:
    engine = ENGINES["llama_server"]
    definition = engine.definition.model_validate({"model_path": "a.gguf", "llama_server_slot_save": True})
    for name, quoted in (("chat", "chat"), ("org/chat:Q4", "org%2Fchat%3AQ4")):
        for index in (0, 3):
            launch = engine.render_command(definition, replace(context, served_name=name, index=index))
            folder = f"{cache}/slots/{quoted}/{index}"
            assert launch.argv[-2:] == ("--slot-save-path", folder)
            assert launch.folders == (PurePosixPath(folder),)
    plain = engine.render_command(definition.model_copy(update={"llama_server_slot_save": False}), context)
    assert ("--slot-save-path" in plain.argv, plain.folders) == (False, ())


def test_llama_server_gets_adapters_with_their_scales() -> None:
    lora = {"model_path": "a.gguf", "llama_server_lora": ["b.gguf", "c/d.gguf"]}
    argv, _ = _launch("llama_server", DOCKER, **lora)
    assert argv[-2:] == ["--lora", "/models/b.gguf,/models/c/d.gguf"]
    argv, _ = _launch("llama_server", DOCKER, **lora, llama_server_lora_scales=[0, -0.5], llama_server_mmproj="e.gguf")
    assert argv[-4:] == [
        *("--mmproj", "/models/e.gguf", "--lora-scaled", "/models/b.gguf:0.0,/models/c/d.gguf:-0.5"),
    ]
    assert "--lora" not in argv
    argv, _ = _launch("llama_server", DOCKER, **lora, llama_server_lora_scales=[0.25])
    assert argv[-2:] == ["--lora-scaled", "/models/b.gguf:0.25,/models/c/d.gguf:1"]
    alone = {"model_path": "a.gguf", "llama_server_lora_scales": [0.25]}
    assert _launch("llama_server", DOCKER, **alone) == _launch("llama_server", DOCKER, model_path="a.gguf")


@pytest.mark.parametrize(
    ("lora", "words"),
    [
        ({"llama_server_lora": ["a"], "llama_server_lora_scales": [1, 2]}, "has 2 values for 1 adapters"),
        ({"llama_server_lora": ["a,b"]}, "takes no path with ','"),
        ({"llama_server_lora": ["a:b"], "llama_server_lora_scales": [1]}, "takes no path with ':'"),
    ],
)
def test_adapters_that_llama_server_would_not_read_as_they_are_meant(lora: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        _launch("llama_server", DOCKER, model_path="a.gguf", **lora)
    _launch("llama_server", DOCKER, model_path="a.gguf", llama_server_lora=["a:b"])


def test_llama_server_as_a_process_is_a_binary_or_embedded() -> None:
    embedded, _ = _launch("llama_server", PROCESS, model_path="m.gguf", llama_server_embedding=True)
    assert embedded[:5] == ["/venv/bin/python", "-m", "worker", "llama_server", "--"]
    assert embedded[-1] == "--embeddings"
    named, _ = _launch("llama_server", PROCESS, model_path="m.gguf", llama_server_binary="/opt/llama-server")
    assert named[:3] == ["/opt/llama-server", "--model", "/srv/models/m.gguf"]


@pytest.mark.parametrize("context", [DOCKER, PROCESS], ids=["docker", "process"])
def test_llama_cpp_is_told_which_gpus_it_must_have(context: RenderContext) -> None:
    argv, _ = _launch("llama_server", context, model_path="m.gguf", gpus=2, extra_args=["--no-warmup"])
    assert argv[-3:] == ["--device", "CUDA0,CUDA1", "--no-warmup"]
    argv, _ = _launch("llama_server", context, model_path="m.gguf", device="cuda")
    assert argv[-2:] == ["--device", "CUDA0"]
    argv, _ = _launch("llama_cpp", context, model_path="m.gguf", gpus=["GPU-b", 0])
    assert argv[-2:] == ["--gpu-count", "2"]
    for backend in ("llama_server", "llama_cpp"):
        for fields in ({}, {"gpus": 0}, {"device": "cpu"}):
            argv, _ = _launch(backend, context, model_path="m.gguf", **fields)
            assert not {"--device", "--gpu-count"} & set(argv)


@pytest.mark.parametrize(
    "fields",
    [
        {"extra_args": ["--device", "none"]},
        {"extra_args": ["-dev", "Vulkan0"]},
        {"env": {"LLAMA_ARG_DEVICE": "Vulkan0"}},
    ],
)
def test_devices_that_a_definition_names_itself_are_those_that_llama_server_gets(fields: dict[str, Any]) -> None:
    argv, _ = _launch("llama_server", DOCKER, model_path="m.gguf", gpus=1, **fields)
    assert "CUDA0" not in argv
    assert argv[len(argv) - len(fields.get("extra_args", [])) :] == fields.get("extra_args", [])


def test_libraries_of_a_program_are_found_where_the_definition_says() -> None:
    engine = ENGINES["llama_server"]
    fields = {"model_path": "m.gguf", "llama_server_library_path": "/opt/lib"}
    definition = engine.definition.model_validate(fields)
    assert engine.render_command(definition, PROCESS).env["LD_LIBRARY_PATH"] == "/opt/lib"
    assert "LD_LIBRARY_PATH" not in engine.render_command(definition, DOCKER).env
    own = engine.definition.model_validate(fields | {"env": {"LD_LIBRARY_PATH": "/other"}})
    assert engine.render_command(own, PROCESS).env["LD_LIBRARY_PATH"] == "/other"


def test_workers() -> None:
    argv, image = _launch("llama_cpp", DOCKER, model_path="m.gguf", gguf_n_ctx=512, gguf_type_k="q8_0")
    assert image == "img/worker"
    assert argv[1:] == [
        *("-m", "worker", "llama_cpp", "--host", "0.0.0.0", "--port", "8000", "--served-name", "chat"),
        *("--model", "/models/m.gguf", "--n-ctx", "512", "--flash-attn", "auto", "--type-k", "q8_0"),
    ]
    argv, _ = _launch("stub", PROCESS, stub_text="hello", stub_load_s=1.5)
    assert argv[0] == "/venv/bin/python"
    assert argv[-3:] == ["--text=hello", "--load-s", "1.5"]


def test_no_secret_and_no_placement_is_rendered() -> None:
    for name, fields in (
        ("llama_server", {"model_path": "m.gguf"}),
        ("llama_cpp", {"model_path": "m.gguf"}),
        ("stub", {}),
    ):
        engine = ENGINES[name]
        definition = engine.definition.model_validate({"backend": name, **fields, "gpus": 1, "vram_mib": 5})
        launch = engine.render_command(definition, DOCKER)
        assert launch.token_env is not None
        assert launch.token_env not in launch.env
        assert not {"--api-key", "--gpus"} & set(launch.argv)


def test_a_remote_starts_nothing() -> None:
    engine = ENGINES["openai_remote"]
    definition = engine.definition.model_validate(
        {"backend": "openai_remote", "base_url": "https://phone.example/v1/", "remote_model": "nano"}
    )
    assert not engine.runs
    remote = engine.describe_remote(definition)
    assert remote is not None
    assert (remote.base_url, remote.model) == ("https://phone.example/v1", "nano")
    with pytest.raises(TypeError, match="starts nothing"):
        engine.render_command(definition, DOCKER)


@pytest.mark.parametrize(
    "fields",
    [
        {"base_url": "ftp://x"},
        {"base_url": "https://x/v1", "api_key_env": "A", "api_key_file": "b"},
        {"base_url": "https://x/v1", "replicas": 2},
    ],
)
def test_a_remote_that_makes_no_sense_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"base_url|exclude|remote model"):
        ENGINES["openai_remote"].definition.model_validate({"backend": "openai_remote", **fields})


def test_the_backend_is_resolved_from_the_artifact() -> None:
    assert resolve_backend("x/Model.GGUF") == "llama_server"
    assert resolve_backend("folder") is None
    assert resolve_backend(None) is None


@pytest.mark.parametrize(
    ("tail", "words", "permanent"),
    [
        ("error: invalid argument: --x", "bad argument", True),
        ("gguf_init_from_file_impl: invalid magic characters", "not a GGUF file", True),
        ("unknown model architecture: 'zamba'", "unsupported model architecture", True),
        ("couldn't bind HTTP server socket, hostname: 127.0.0.1", "port taken", False),
        (
            "mtmd_init_from_file: error: mismatch between text model (n_embd = 64) and mmproj (n_embd = 128)\n"
            "E srv    load_model: failed to load multimodal model, 'p.gguf'",
            "`llama_server_mmproj` is no projector of this model",
            True,
        ),
    ],
)
def test_llama_cpps_sentences_in_plain_words(tail: str, words: str, permanent: bool) -> None:
    verdict = ENGINES["llama_server"].explain_exit(1, tail)
    assert verdict is not None
    assert (verdict.message, verdict.permanent) == (words, permanent)
    assert ENGINES["llama_server"].explain_exit(1, "all is well") is None
