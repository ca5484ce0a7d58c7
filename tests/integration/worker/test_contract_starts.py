"""How every engine of the worker says that it cannot start: plainly, last, and so that the controller understands it.

One process of each engine ends on a model that is not there. What else can be wrong with a model is tried in this
process, where the library tells its reasons there and can be tried again.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from controller.engines import ENGINES
from controller.engines.base import Verdict
from tests.fakes import fake_exllamav3, fake_torch
from tests.support.clockwork_folders import write_tokenizer
from tests.support.onnx_models import write_model
from tests.support.worker_engines import WorkerEngine, each_engine, load_error, plain_flags, start
from worker.__main__ import parse_engine
from worker.clockwork import make_vocabulary

pytestmark = pytest.mark.engines

Harm = Callable[[Path], object]


def drop(name: str) -> Harm:
    return lambda model: (model / name).unlink()


def write(name: str, content: bytes) -> Harm:
    return lambda model: (model / name).write_bytes(content)


def template(text: str | None) -> Harm:
    return lambda model: write_tokenizer(model, make_vocabulary(), text)


def cut(name: str, size: int) -> Harm:
    def harm(model: Path) -> None:
        with (model / name).open("r+b") as file:
            file.truncate(size)

    return harm


def without_vocabulary(model: Path) -> None:
    """An ONNX file alone."""
    model.with_name("demo-vocab.txt").unlink()


def nothing(model: Path) -> None:
    """The flags are what is wrong."""


FORMAT = ("--prompt-format", "generic")
NOT_CT2, NOT_EXL3 = "not a CTranslate2 folder", "not an EXL3 folder"
NOT_LITERT = "PATH is not a .litertlm file: it begins with b'GGUF and'"
CASE = ("engine", "harm", "flags", "line", "plainly")
HERE: list[tuple[str, Harm, tuple[str, ...], str, str]] = [
    ("ct2", drop("model.bin"), (), "cannot open PATH/model.bin: No such file or directory", NOT_CT2),
    ("ct2", drop("tokenizer.json"), (), "cannot open PATH/tokenizer.json: No such file", "no tokenizer.json in the"),
    ("ct2", write("tokenizer.json", b"{}"), (), "tokenizers cannot load PATH/tokenizer.json: ", "cannot be read"),
    ("ct2", write("tokenizer_config.json", b"[]"), (), "PATH/tokenizer_config.json is not a JSON", "cannot be read"),
    ("ct2", template(None), FORMAT, "--prompt-format generic: there is no chat template in PATH", "no chat template"),
    ("ct2", template("{% for"), (), "the chat template default cannot be used: ", "the chat template cannot be used"),
    ("ct2", write("model.bin", b"GGUF and so on"), (), "CTranslate2 cannot load PATH: Unsupported", "not a model"),
    ("ct2", cut("model.bin", 300_000), (), "CTranslate2 cannot load PATH: ", "not a model that"),
    (
        *("ct2", nothing, ("--compute-type", "float16"), "CTranslate2 cannot load PATH: Requested float16 compute"),
        "the hardware lacks this ct2_compute_type",
    ),
    ("exllamav3", drop("config.json"), (), "cannot open PATH/config.json: No such file", NOT_EXL3),
    ("exllamav3", drop("model.safetensors"), (), "there are no weights (*.safetensors) in PATH", NOT_EXL3),
    ("exllamav3", drop("tokenizer.json"), (), "cannot open PATH/tokenizer.json: No such", "no tokenizer.json in the"),
    ("exllamav3", write("config.json", b"{}"), (), "ExLlamaV3 cannot load PATH: No architecture", "not a model that"),
    ("litert_lm", write("", b"GGUF and so on"), (), NOT_LITERT, "not a .litertlm file"),
    ("litert_lm", nothing, ("--vision-backend", "cpu"), "PATH takes no images", "the model takes no images"),
    ("litert_lm", nothing, ("--audio-backend", "cpu"), "PATH takes no audio", "the model takes no audio"),
    ("litert_lm", nothing, ("--max-tokens", "5000"), "--max-tokens 5000 is more than the 4096", "bad argument"),
    ("onnx", without_vocabulary, (), "no tokenizer beside PATH: put its", "no tokenizer beside the model"),
    ("onnx", write("", b"no model"), (), "ONNX Runtime cannot load PATH: it is not an ONNX file", "not an ONNX file"),
    (
        *("onnx", lambda model: write_model(model, names=("pixel_values",)), ()),
        *("the model has an input `pixel_values`; an embedding model has", "not an embedding model"),
    ),
]  # fmt: skip
PROCESSES: list[tuple[str, Harm, tuple[str, ...], str, str | None]] = [
    ("litert_lm", cut("", 50_000), (), "LiteRT-LM cannot load PATH", "the file is not complete"),
    ("litert_lm", nothing, ("--backend", "gpu"), "LiteRT-LM cannot load PATH with its computing on the gpu", "Vulkan"),
    ("llama_cpp", cut("", 300_000), (), "llama.cpp cannot load PATH: .*corrupted or incomplete", None),
    (
        *("llama_cpp", nothing, ("--chat-format", "none")),
        *("--chat-format none: neither the model nor llama-cpp-python has it", None),
    ),
]


@pytest.fixture
def model_for(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Its own copy of an engine's demo model: a file, or a folder."""

    def created(engine: str) -> Path:
        folder = tmp_path / "m"
        folder.mkdir()
        flags = plain_flags(engine, folder)
        path = Path(flags[flags.index("--model") + 1])
        return path if path.is_relative_to(folder) else Path(shutil.copy(path, folder / path.name))

    return created


def explained(engine: str, log: str, plainly: str) -> None:
    verdict = ENGINES[engine].explain_exit(1, log)
    assert verdict is not None
    assert plainly in verdict.message
    assert verdict.permanent


@pytest.mark.parametrize(CASE, HERE, ids=[f"{case[0]}-{case[3]}" for case in HERE])
def test_a_model_that_cannot_be_served(
    monkeypatch: pytest.MonkeyPatch,
    model_for: Callable[[str], Path],
    engine: str,
    harm: Harm,
    flags: tuple[str, ...],
    line: str,
    plainly: str,
) -> None:
    model = model_for(engine)
    harm(model)
    if engine == "exllamav3":
        monkeypatch.setitem(sys.modules, "exllamav3", fake_exllamav3)
        monkeypatch.setitem(sys.modules, "torch", fake_torch)
    output = load_error(engine, model, *flags)
    assert output.startswith(line.replace("PATH", str(model)))
    explained(engine, output, plainly)


@pytest.mark.parametrize(CASE, PROCESSES, ids=[f"{case[0]}-{case[3]}" for case in PROCESSES])
def test_a_model_that_cannot_be_served_for_reasons_that_the_library_writes_to_its_log(
    tmp_path: Path,
    model_for: Callable[[str], Path],
    engine: str,
    harm: Harm,
    flags: tuple[str, ...],
    line: str,
    plainly: str | None,
) -> None:
    model = model_for(engine)
    harm(model)
    with start(engine, tmp_path / "log", "--model", str(model), *flags) as worker:
        assert worker.ended() == 1
        assert re.match(line.replace("PATH", re.escape(str(model))), worker.last_line), worker.log
        if plainly is not None:
            explained(engine, worker.log, plainly)


@each_engine(lambda engine: engine.name != "stub")
def test_a_model_that_is_not_there_ends_the_process(tmp_path: Path, engine: WorkerEngine) -> None:
    with start(engine.name, tmp_path / "log", "--model", "/nowhere/m") as worker:
        assert worker.ended() == 1
        inside = {"ct2": "/model.bin", "exllamav3": "/config.json"}.get(engine.name, "")
        assert worker.last_line == f"cannot open /nowhere/m{inside}: No such file or directory"


@pytest.mark.parametrize("engine", ["llama_cpp", pytest.param("llama_server", marks=pytest.mark.embedded)])
def test_a_file_of_another_kind(tmp_path: Path, engine: str) -> None:
    if engine == "llama_cpp":
        output = load_error(engine, Path(__file__))
    else:
        with start(engine, tmp_path / "log", "--model", __file__) as worker:
            assert worker.ended() == 1
            output = worker.last_line
    assert output == f"{__file__} is not a GGUF file: it begins with b'\"\"\"H', not b'GGUF'"
    explained(engine, output, "not a GGUF file")


NAMES = {"ct2": "CTranslate2", "exllamav3": "ExLlamaV3", "llama_cpp": "llama-cpp-python", "litert_lm": "LiteRT-LM"}
NO_CT2 = Verdict("CTranslate2 is not installed (extra `ct2`)", permanent=True)
NO_CUDA = Verdict("ExLlamaV3 cannot be used here: it cannot be compiled, or lacks a library")
NO_ONNX = Verdict("ONNX Runtime is not installed (extra `onnx`)", permanent=True)
BROKEN: list[tuple[str, str, str, Verdict | None]] = [
    ("ct2", "ctranslate2", "No module named 'libct2'", NO_CT2),
    ("exllamav3", "torch", "libcuda.so.1: cannot open shared object file", NO_CUDA),
    ("llama_cpp", "llama_cpp", "libllama.so: cannot open shared object file", None),
    ("litert_lm", "litert_lm", "libLiteRt.so: cannot open shared object file", None),
    ("onnx", "onnxruntime", "No module named 'onnxruntime'", NO_ONNX),
]
"""The package that is broken, why, and what the controller makes of it; None: it has nothing to say."""


@pytest.mark.parametrize(("engine", "package", "reason", "verdict"), BROKEN)
def test_without_its_package_it_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    model_for: Callable[[str], Path],
    engine: str,
    package: str,
    reason: str,
    verdict: Verdict | None,
) -> None:
    model = model_for(engine)
    kind = "ModuleNotFoundError" if reason.startswith("No module") else "ImportError"
    (tmp_path / f"{package}.py").write_text(f"raise {kind}({reason!r})")
    monkeypatch.delitem(sys.modules, package, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    output = load_error(engine, model)
    name, extra = NAMES.get(engine, "ONNX Runtime"), engine.replace("_", "-")
    assert output == f"{name} cannot be used: {reason} (it is the extra `{extra}`)"
    assert ENGINES[engine].explain_exit(1, output) == verdict


@pytest.mark.parametrize(
    ("engine", "flags", "line"),
    [
        (
            *("exllamav3", ("--cache-quant", "9")),
            "argument --cache-quant: must be bits from 2 to 8, for K and V alike or as",
        ),
        ("exllamav3", ("--cache-quant", "8,"), "argument --cache-quant: must be bits from 2 to 8"),
        ("exllamav3", ("--cache-size", "300"), "argument --cache-size: must be a multiple of 256, is 300"),
        ("exllamav3", ("--prompt-format", "translategemma_template"), "argument --prompt-format: invalid choice"),
        ("llama_cpp", ("--type-k", "q9"), "argument --type-k: invalid choice: 'q9'"),
        ("llama_cpp", ("--chat-format", "chatml", *FORMAT), "not allowed with argument --chat-format"),
    ],
)
def test_arguments_that_an_engine_lacks_are_refused_by_name(
    capsys: pytest.CaptureFixture[str], engine: str, flags: tuple[str, ...], line: str
) -> None:
    listen = ("--host", "127.0.0.1", "--port", "1", "--served-name", "demo", "--model", "m")
    with pytest.raises(SystemExit) as raised:
        parse_engine(engine, [*listen, *flags])
    assert raised.value.code == 2
    assert line in capsys.readouterr().err
