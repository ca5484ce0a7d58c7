"""What LiteRT-LM and ONNX render, check and explain."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any, get_args

import pytest

from controller.artifacts.model_roots import ModelRoots
from controller.engines import ENGINES
from controller.engines.base import Launch, RenderContext
from controller.runtimes.model_files import check_files
from controller.schema.desired import Definition
from worker.__main__ import parse_engine
from worker.engines.litert_lm import BACKENDS
from worker.engines.onnx import POOLINGS


def definition(backend: str, path: str = "a/m.x", **fields: Any) -> Definition:
    fields = {"backend": backend, "model_path": path, **fields}
    made: Definition = ENGINES[backend].definition.model_validate(fields)
    return made


def launch(backend: str, runtime: Any = "process", **fields: Any) -> Launch:
    context = RenderContext(
        runtime=runtime,
        served_name="a/model:1",
        models_root=PurePosixPath("/models"),
        host="127.0.0.1",
        port=8099,
        cache_dir=PurePosixPath("/cache"),
        executables={"python": "python"},
        images={"worker": "roundhouse/worker:1"},
    )
    return ENGINES[backend].render_command(definition(backend, **fields), context)


def flags(backend: str, **fields: Any) -> dict[str, Any]:
    """What the worker understands of the command line, without what is every engine's."""
    python, dash_m, worker, engine, *arguments = launch(backend, **fields).argv
    assert (python, dash_m, worker, engine) == ("python", "-m", "worker", backend)
    found = vars(parse_engine(engine, arguments)[1])
    assert (found.pop("host"), found.pop("port"), found.pop("served_name")) == ("127.0.0.1", 8099, "a/model:1")
    assert found.pop("model") == Path("/models/a/m.x")
    return found


LITERT_LM: dict[str, Any] = {
    "backend": "cpu",
    "vision_backend": None,
    "audio_backend": None,
    "max_tokens": None,
    "cache_dir": Path("/cache/litert-lm"),
    "session_cache": 4,
}
ONNX: dict[str, Any] = {"tokenizer": None, "max_tokens": None, "pooling": "mean", "no_normalize": False, "threads": 0}


@pytest.mark.parametrize(
    ("backend", "fields", "changed"),
    [
        ("litert_lm", {}, {}),
        ("litert_lm", {"gpus": 1}, {"backend": "gpu"}),
        ("litert_lm", {"gpus": 1, "litert_lm_backend": "cpu"}, {}),
        ("litert_lm", {"device": "cuda", "litert_lm_backend": "gpu"}, {"backend": "gpu"}),
        ("litert_lm", {"litert_lm_vision_backend": "cpu"}, {"vision_backend": "cpu"}),
        ("litert_lm", {"litert_lm_audio_backend": "cpu"}, {"audio_backend": "cpu"}),
        ("litert_lm", {"litert_lm_max_tokens": 100}, {"max_tokens": 100}),
        ("litert_lm", {"session_cache": 7}, {"session_cache": 7}),
        ("litert_lm", {"extra_args": ["--max-tokens", "7"]}, {"max_tokens": 7}),
        ("onnx", {}, {}),
        ("onnx", {"onnx_tokenizer": "b/t.json"}, {"tokenizer": Path("/models/b/t.json")}),
        ("onnx", {"onnx_max_tokens": 100}, {"max_tokens": 100}),
        ("onnx", {"onnx_pooling": "cls"}, {"pooling": "cls"}),
        ("onnx", {"onnx_normalize": False}, {"no_normalize": True}),
        ("onnx", {"onnx_threads": 2}, {"threads": 2}),
        ("onnx", {"extra_args": ["--threads", "3"]}, {"threads": 3}),
    ],
)
def test_every_field_reaches_the_worker(backend: str, fields: dict[str, Any], changed: dict[str, Any]) -> None:
    plain = {"litert_lm": LITERT_LM, "onnx": ONNX}[backend]
    assert flags(backend, **fields) == plain | changed


@pytest.mark.parametrize("backend", ["litert_lm", "onnx"])
def test_where_they_run(backend: str) -> None:
    contained = launch(backend, "docker", env={"A": "b"})
    assert contained.argv[0] == "/opt/roundhouse/bin/python"
    assert (contained.image, contained.token_env) == ("roundhouse/worker:1", "ROUNDHOUSE_ENGINE_TOKEN")
    assert contained.env == {"A": "b"}
    assert launch(backend, "docker", image="mine:2").image == "mine:2"
    engine = ENGINES[backend]
    assert engine.target_inflight(definition(backend, target_inflight=8)) == 1
    assert engine.describe_probe(definition(backend)).ready_path in engine.list_apis(definition(backend))


def test_the_worker_knows_every_choice() -> None:
    fields = ENGINES["litert_lm"].definition.model_fields
    [named, _] = get_args(fields["litert_lm_backend"].annotation)
    assert get_args(named) == BACKENDS
    assert get_args(ENGINES["onnx"].definition.model_fields["onnx_pooling"].annotation) == POOLINGS


@pytest.mark.parametrize("tokenizer", ["tokenizer.json", "m-vocab.txt", "vocab.txt"])
def test_an_embedding_model_s_tokenizer_is_looked_for(tmp_path: Path, tokenizer: str) -> None:
    engine = ENGINES["onnx"]
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "m.onnx").write_bytes(b"x")
    (tmp_path / tokenizer).write_text("in another folder")
    found = check_files(ModelRoots((tmp_path,)), engine.list_files(definition("onnx", "a/m.onnx")))
    wanted = "tokenizer.json or *-vocab.txt or vocab.txt"
    assert found == f"model_path: a/m.onnx needs a file beside it that is not there: {wanted}"
    named = engine.list_files(definition("onnx", "a/m.onnx", onnx_tokenizer="t.json"))
    assert str(check_files(ModelRoots((tmp_path,)), named)).startswith(
        f"onnx_tokenizer: t.json is missing from {tmp_path}"
    )
    (tmp_path / "a" / tokenizer).write_text("x")
    assert check_files(ModelRoots((tmp_path,)), engine.list_files(definition("onnx", "a/m.onnx"))) is None


@pytest.mark.parametrize(
    ("backend", "line", "message", "permanent"),
    [
        ("litert_lm", "LiteRT-LM cannot be used: No module named 'litert_lm' (", "not installed", True),
        ("litert_lm", "MemoryError: std::bad_alloc", "out of memory", False),
        ("litert_lm", "port 8000 on 127.0.0.1 is taken: stop what", "port taken", False),
        ("litert_lm", "x.litertlm holds no language model, but embedding", "not a language model", True),
        ("onnx", "x-vocab.txt is not a BERT vocabulary: it has no [UNK]", "not a tokenizer", True),
        ("onnx", "no output of the model is an embedding", "not an embedding model", True),
        ("onnx", "--max-tokens 2 leaves no room for a text", "bad argument", True),
        ("onnx", "bad_alloc", "out of memory", False),
        (
            "onnx",
            "ONNX Runtime cannot load /m/a.onnx: Deserialize tensor w failed. External data path does not exist",
            "external data",
            True,
        ),
        ("onnx", "port 8000 on 127.0.0.1 is taken: stop what", "port taken", False),
    ],
)
def test_how_they_end(backend: str, line: str, message: str, permanent: bool) -> None:
    verdict = ENGINES[backend].explain_exit(1, f"loading\n{line}\n")
    assert verdict is not None
    assert message in verdict.message
    assert verdict.permanent is permanent
    assert ENGINES[backend].explain_exit(1, "all is well") is None
