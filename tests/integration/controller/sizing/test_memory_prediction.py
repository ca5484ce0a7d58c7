"""What is predicted of a load against what llama.cpp reports of it."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

import pytest

from contract.desired import Definition
from controller.artifacts.heads import Gguf
from controller.artifacts.read import read_artifact
from controller.engines import ENGINES
from controller.engines.base import RenderContext
from controller.engines.memory import MIB, MemoryParts, Prediction
from tests.support.gguf_files import Hybrid, write_bert, write_hybrid, write_llama, write_projector
from tests.support.installed_engines import Program, needed, program
from tests.support.ports import free_port
from tests.support.require import require
from tests.support.worker_process import Worker, eventually

pytestmark = pytest.mark.engines

NORMS: Final = ("attn_q_norm", "attn_k_norm")
SMALL: Final[dict[str, Any]] = {"layers": 2, "width": 256, "heads": 4, "kv_heads": 1, "vocabulary": 2048}
MIDDLE: Final[dict[str, Any]] = {"layers": 4, "width": 512, "heads": 8, "kv_heads": 2, "vocabulary": 32000}
EVEN: Final = MIDDLE | {"layers": 8, "kv_heads": 8, "vocabulary": 8000, "inner": 2048}
WIDE: Final = SMALL | {"width": 1024, "heads": 16, "kv_heads": 4, "vocabulary": 64000, "inner": 4096}
GEMMA: Final = (
    EVEN
    | {"architecture": "gemma3", "layers": 6, "heads": 4, "kv_heads": 2, "head": 128, "window": 512, "tied": True}
    | {"normed": (*NORMS, "post_attention_norm", "post_ffw_norm")}
)
QWEN: Final = (
    MIDDLE
    | {"architecture": "qwen3", "heads": 16, "kv_heads": 4, "head": 64}
    | {"inner": 1536, "tied": True, "normed": NORMS}
)
EXPERTS: Final = MIDDLE | {"architecture": "qwen3moe", "vocabulary": 4096, "experts": (16, 8, 128), "normed": NORMS}
CLIP: Final[dict[str, Any]] = {"side": 448, "width": 512, "inner": 2048, "heads": 8, "out": 256}
BERT: Final[dict[str, Any]] = {"layers": 3, "width": 384, "inner": 1536, "heads": 6, "vocabulary": 8000}
OFF: Final = {"flash_attn": "off"}
ROWS: Final = [
    ("small-short", SMALL, 1, {"n_ctx": 512}),
    ("small-long", SMALL, 4, {"n_ctx": 32768, "cache_type_k": "q8_0", "cache_type_v": "q4_0"}),
    ("small-odd", SMALL, 4, {"n_ctx": 4000, "flash_attn": "on"}),
    ("middle-short", MIDDLE, 4, {"n_ctx": 512, **OFF}),
    ("middle-own", MIDDLE, 1, {}),
    ("even-off", EVEN, 4, {"n_ctx": 4096, **OFF}),
    ("even-q8", EVEN, 1, {"n_ctx": 16384, "cache_type_k": "q8_0", "cache_type_v": "q8_0"}),
    ("wide", WIDE, 4, {"n_ctx": 4096}),
    ("wide-embedding", WIDE, 1, {"n_ctx": 2048, "embedding": True}),
    ("gemma-window", GEMMA, 4, {"n_ctx": 8192}),
    ("gemma-off", GEMMA, 1, {"n_ctx": 8192, **OFF}),
    ("qwen-f32", QWEN, 4, {"n_ctx": 8192, "cache_type_k": "f32", "cache_type_v": "f32"}),
    ("experts", EXPERTS, 4, {"n_ctx": 8192}),
    ("delta-net", Hybrid("qwen35", state=128, groups=8, inner=256, drafts=1), 4, {"n_ctx": 4096}),
    ("delta-net-experts", Hybrid("qwen3next", experts=(8, 2, 64)), 1, {"n_ctx": 2048, **OFF}),
    ("delta-net-qwen35moe", Hybrid("qwen35moe", experts=(8, 2, 64)), 2, {"n_ctx": 4096}),
    ("short-convolutions", Hybrid("lfm2"), 4, {"n_ctx": 4096, "cache_type_k": "q8_0"}),
    ("mamba-and-attention", Hybrid("granitehybrid", groups=1), 2, {"n_ctx": 8192}),
    ("one-of-three", Hybrid("nemotron_h", layers=8), 4, {"n_ctx": 4096}),
    ("mamba-beside-attention", Hybrid("falcon-h1"), 1, {"n_ctx": 4096}),
    ("mamba-alone", Hybrid("mamba2", state=128), 4, {"n_ctx": 4096}),
    ("draft", MIDDLE, 2, {"n_ctx": 8192, "cache_type_k": "q8_0", "draft_model_path": SMALL | {"vocabulary": 32000}}),
    ("encoder", BERT, 4, {"embedding": True}),
    ("encoder-off", BERT, 1, {"embedding": True, "n_ctx": 512, **OFF}),
    ("images", SMALL, 1, {"n_ctx": 512, "mmproj": CLIP}),
    ("images-off", SMALL, 1, {"n_ctx": 512, "mmproj": CLIP, **OFF}),
]
KINDS: Final = {"model": "weights", "KV": "kv_cache", "RS": "kv_cache", "compute": "compute", "output": "compute"}
TOLERANCE: Final = 0.1


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def model_file(models: Path, shape: Mapping[str, Any] | Hybrid) -> str:
    if isinstance(shape, Hybrid):
        write_hybrid(models / f"{shape.architecture}.gguf", shape)
        return f"{shape.architecture}.gguf"
    name = f"{'-'.join(str(value) for value in shape.values() if isinstance(value, int | str))}.gguf"
    if not (models / name).exists():
        write = write_bert if shape is BERT else write_projector if shape is CLIP else write_llama
        write(models / name, **shape)
    return name


def predicted(backend: str, definition: Definition, models: Path) -> MemoryParts:
    engine = ENGINES[backend]
    artifacts = {path: read_artifact(path, [models / path]) for path in engine.list_artifacts(definition)}
    forecast = engine.predict_memory(definition, artifacts)
    assert isinstance(forecast, Prediction), forecast
    assert forecast.gpu == MemoryParts()
    # Of a projector llama.cpp tells what it computes with, and not its weights.
    untold = sum(each.weights for each in artifacts.values() if isinstance(each, Gguf) and each.architecture == "clip")
    return replace(forecast.host, weights=forecast.host.weights - untold)


def reported(log: str) -> MemoryParts:
    """Sums of the buffers that llama.cpp tells of."""
    sums = dict.fromkeys(KINDS.values(), 0.0)
    for kind, mib in re.findall(rf"({'|'.join(KINDS)}) buffer size = +([\d.]+) MiB", log):
        sums[KINDS[kind]] += float(mib)
    return MemoryParts(**{name: int(mib * MIB) for name, mib in sums.items()})


def held(parts: MemoryParts) -> tuple[int, int]:
    """MiB of what both tell of, and of the KV cache."""
    return parts.weights + parts.kv_cache + parts.compute, parts.kv_cache


@pytest.mark.parametrize(("shape", "sequences", "fields"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_llama_server_takes_what_is_predicted(
    tmp_path: Path, models: Path, shape: Mapping[str, Any] | Hybrid, sequences: int, fields: Mapping[str, Any]
) -> None:
    needed("binary")
    engine, port, log = ENGINES["llama_server"], free_port(), tmp_path / "log"
    definition = engine.definition.model_validate(
        {
            "model_path": model_file(models, shape),
            "target_inflight": sequences,
            "extra_args": ["--threads", "1", "--log-verbosity", "5"],
        }
        | {f"llama_server_{field}": value for field, value in fields.items()}
        | {
            f"llama_server_{field}": model_file(models, value)
            for field, value in fields.items()
            if isinstance(value, dict)
        }
    )
    context = RenderContext(
        "process",
        "m",
        PurePosixPath(models),
        "127.0.0.1",
        port,
        PurePosixPath(tmp_path),
        {"llama-server": str(program())},
    )
    launch = engine.render_command(definition, context)
    with Program(log, port, Path(launch.argv[0]), *launch.argv[1:], token="t").ready() as server:
        # llama-server answers before its log, which a thread of its own writes, has come so far.
        eventually("the log of the load", lambda: "model loaded" in server.log)
        assert_near(predicted("llama_server", definition, models), reported(server.log))


@pytest.mark.parametrize(
    ("shape", "fields"),
    [
        pytest.param(MIDDLE, {"n_ctx": 2048}, id="middle"),
        pytest.param(GEMMA, {"n_ctx": 8192, "type_k": "q8_0", "type_v": "q8_0"}, id="gemma-q8"),
        pytest.param(SMALL, {"n_ctx": 1000, "embedding": True}, id="small-embedding"),
    ],
)
def test_llama_cpp_takes_what_is_predicted(
    tmp_path: Path, models: Path, shape: Mapping[str, Any], fields: Mapping[str, Any]
) -> None:
    require("llama_cpp", importlib.util.find_spec("llama_cpp") is not None, "llama-cpp-python is not installed")
    name = model_file(models, shape)
    engine, port = ENGINES["llama_cpp"], free_port()
    definition = engine.definition.model_validate(
        {"backend": "llama_cpp", "model_path": name} | {f"gguf_{field}": value for field, value in fields.items()}
    )
    if not fields.get("embedding"):  # the file has no chat template
        definition = definition.model_copy(update={"gguf_chat_format": "chatml"})
    context = RenderContext(
        "process", "m", PurePosixPath(models), "127.0.0.1", port, PurePosixPath(tmp_path), {"python": "python"}
    )
    with Worker(tmp_path / "log", port, *engine.render_command(definition, context).argv[3:]).ready() as worker:
        assert_near(predicted("llama_cpp", definition, models), reported(worker.log))


def assert_near(ours: MemoryParts, theirs: MemoryParts) -> None:
    assert min(theirs.weights, theirs.compute) > 0, "llama.cpp says something else of its buffers now"
    (total, cache), (their_total, their_cache) = held(ours), held(theirs)
    assert cache == pytest.approx(their_cache, abs=MIB / 50)
    assert total == pytest.approx(their_total, rel=TOLERANCE), f"{ours} and {theirs}"
