"""ExLlamaV3 in a worker, on its fake: batching, cache, cancellation, and starts that cannot be."""

from __future__ import annotations

import http.client
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from controller.engines import ENGINES
from controller.engines.base import RenderContext
from tests.fakes import fake_exllamav3, fake_torch
from tests.support.clockwork_folders import make_hf
from tests.support.hf_workers import load_error, start
from tests.support.scripted_models import choice, told
from tests.support.worker_process import Worker, eventually, leave
from worker.clockwork import COMPLETION_TOKENS, SENTENCE, make_vocabulary

Start = Callable[..., Worker]
CHAT = "/v1/chat/completions"
END = str(make_vocabulary().id_of("<|end|>"))
ENDLESS: dict[str, Any] = {"prompt": "<|assistant|>", "logit_bias": {END: -1000}, "stream": True}
HELLO = {"messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "m"
    make_hf(folder)
    return folder


@pytest.fixture
def begin(tmp_path: Path, model: Path) -> Iterator[Start]:
    """Starts a worker on a folder."""
    workers: list[Worker] = []

    def begun(*flags: str, path: Path = model, **env: str) -> Worker:
        workers.append(start("exllamav3", tmp_path / f"{len(workers)}.log", path, *flags, env=env or None))
        return workers[-1]

    yield begun
    for worker in workers:
        worker.__exit__()


def test_requests_are_worked_on_side_by_side(begin: Start) -> None:
    worker = begin().ready()
    running = worker.open("POST", "/v1/completions", ENDLESS)
    eventually("it runs", lambda: worker.figure("tokens_predicted_total") > 0)
    assert choice(worker)["message"]["content"] == SENTENCE
    assert worker.figure("requests_processing") == 1, "the first one runs on"
    assert "job 1 starts beside 1" in worker.log
    leave(running)
    eventually("it was cancelled", lambda: "job 0 cancelled" in worker.log)


def test_two_streams_interleave(begin: Start) -> None:
    worker = begin().ready()
    responses = [worker.open("POST", "/v1/completions", {**ENDLESS, "max_tokens": 300}) for _ in range(2)]
    eventually("both run", lambda: worker.figure("requests_processing") == 2)
    made = [each.getresponse().read().count(b'"text"') for each in responses]
    assert made[0] > 290
    assert made[1] > 290
    assert re.search(r"job \d starts beside 1", worker.log)


def test_a_request_that_waits_for_pages_gets_those_of_one_that_left(begin: Start) -> None:
    worker = begin("--cache-size", "512").ready()
    running = worker.open("POST", "/v1/completions", ENDLESS)
    eventually("it runs", lambda: worker.figure("tokens_predicted_total") > 0)
    waiting = worker.open("POST", CHAT, HELLO)
    eventually("both were taken", lambda: worker.figure("requests_processing") == 2)
    assert "job 1 starts" not in worker.log
    leave(running)
    answer = json.loads(waiting.getresponse().read())
    assert answer["choices"][0]["message"]["content"] == SENTENCE
    assert "job 1 starts beside 0" in worker.log


def test_one_that_waits_for_pages_may_leave(begin: Start) -> None:
    worker = begin("--cache-size", "512").ready()
    running = worker.open("POST", "/v1/completions", ENDLESS)
    eventually("it runs", lambda: worker.figure("tokens_predicted_total") > 0)
    waiting = worker.open("POST", CHAT, HELLO)
    eventually("both were taken", lambda: worker.figure("requests_processing") == 2)
    leave(waiting)
    eventually("it is gone", lambda: "job 1 cancelled after 0 tokens" in worker.log)
    assert worker.figure("requests_processing") == 1
    leave(running)


def test_a_long_answer_is_worked_on_in_parts(begin: Start) -> None:
    worker = begin().ready()
    answer = told(worker, "/v1/completions", **{**ENDLESS, "stream": False, "max_tokens": 600})
    assert answer["usage"]["completion_tokens"] == 600
    assert "job 0 starts beside 0, 1 pages" in worker.log
    assert "job 0 starts beside 0, 3 pages" in worker.log


def test_a_load_s_own_values_reach_the_engine(begin: Start) -> None:
    engine = ENGINES["exllamav3"]
    declared = engine.definition.model_validate({"backend": "exllamav3", "model_path": "m", "exllama_cache_quant": "8"})
    bits = {"exllama_cache_k_bits": 6, "exllama_cache_v_bits": 4, "exllama_cache_size": 1024}
    loaded = declared.model_copy(update=engine.load_override(bits))
    context = RenderContext(
        "process", "m", PurePosixPath("/models"), "h", 1, PurePosixPath("/c"), executables={"python": "python"}
    )
    flags = engine.render(loaded, context).argv
    log = begin(*flags[flags.index("--model") + 2 :]).ready().log
    assert "exllamav3: cache of 1024, CacheLayer_quant, {'k_bits': 6, 'v_bits': 4}\n" in log


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ((), "cache of 4096, CacheLayer_fp16, {}"),
        (("--cache-size", "512", "--cache-quant", "8"), "cache of 512, CacheLayer_quant, {'k_bits': 8, 'v_bits': 8}"),
        (("--cache-quant", "8,4"), "cache of 4096, CacheLayer_quant, {'k_bits': 8, 'v_bits': 4}"),
    ],
)
def test_the_cache_is_as_asked_for(begin: Start, flags: tuple[str, ...], line: str) -> None:
    worker = begin(*flags).ready()
    assert f"exllamav3: {line}\n" in worker.log
    assert choice(worker)["message"]["content"] == SENTENCE


def test_it_splits_layers_where_asked_and_tells_how_far_a_load_is(begin: Start) -> None:
    assert "loaded, tensor_p=False" in begin().ready().log
    log = begin("--tensor-parallel").ready().log
    assert "loaded, tensor_p=True" in log
    progress = ENGINES["exllamav3"].progress
    assert (progress(""), progress(log), progress(log[: log.index("50 %") + 5])) == (None, 1.0, 0.5)


def test_no_request_has_more_tokens_than_it_may(begin: Start) -> None:
    worker = begin("--max-rq-tokens", "20").ready()
    status, body = worker.ask("POST", CHAT, {"messages": [{"role": "user", "content": "x" * 20}]})
    error = json.loads(body)["error"]
    assert (status, error["code"]) == (400, "context_length_exceeded")
    assert error["message"] == "The prompt has 23 tokens, more than fit the context of 20."
    answer = told(worker)
    assert (answer["choices"][0]["finish_reason"], answer["usage"]["total_tokens"]) == ("length", 20)
    assert answer["usage"]["completion_tokens"] < COMPLETION_TOKENS


def test_a_prompt_that_fills_the_cache(begin: Start) -> None:
    worker = begin("--cache-size", "256").ready()
    for length, code in ((254, None), (255, "context_length_exceeded")):
        prompt = [make_vocabulary().id_of("<|assistant|>")] * length
        answer = told(worker, "/v1/completions", prompt=prompt)
        assert answer.get("error", {}).get("code") == code


def test_seeds_and_biases(begin: Start) -> None:
    worker = begin().ready()
    wild = {"prompt": "<|assistant|>", "max_tokens": 8, "temperature": 1000}
    one, again, other = (told(worker, "/v1/completions", **wild, seed=seed)["choices"][0]["text"] for seed in (1, 1, 2))
    assert one == again != other
    bad = told(worker, "/v1/completions", prompt="a", logit_bias={"999999": 1})
    assert bad["error"]["param"] == "logit_bias"
    for field, value in (("min_p", 2), ("min_p", -0.1), ("repeat_penalty", 0), ("repeat_penalty", -1)):
        bad = told(worker, "/v1/completions", prompt="a", **{field: value})
        assert (bad["error"]["code"], bad["error"]["param"]) == ("invalid_request", field), (field, value)


def test_a_lock_that_a_killed_compile_left_is_taken_away(begin: Start, tmp_path: Path) -> None:
    lock = tmp_path / "exllamav3_ext" / "lock"
    lock.parent.mkdir()
    lock.touch()
    begin(TORCH_EXTENSIONS_DIR=str(tmp_path)).ready()
    assert not lock.exists()


def test_a_generator_that_breaks_ends_the_worker(begin: Start, model: Path, tmp_path: Path) -> None:
    site = tmp_path / "broken"
    site.mkdir()
    (site / "torch.py").write_text("from tests.fakes.fake_torch import *\n")
    (site / "exllamav3.py").write_text(
        "from tests.fakes import fake_exllamav3\n"
        "from tests.fakes.fake_exllamav3 import *\n"
        "class Generator(fake_exllamav3.Generator):\n"
        "    def _step(self, job):\n"
        "        raise RuntimeError('CUDA error: an illegal memory access was encountered')\n"
    )
    root = Path(__file__).parents[2]
    worker = begin(PYTHONPATH=f"{site}:{root}").ready()
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        worker.ask("POST", CHAT, HELLO)
    assert worker.ended() == 1
    assert worker.last_line.startswith("ExLlamaV3 failed: RuntimeError('CUDA error")


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (("--cache-quant", "9"), "argument --cache-quant: must be bits from 2 to 8, for K and V alike or as `K,V`"),
        (("--cache-quant", "8,"), "argument --cache-quant: must be bits from 2 to 8"),
        (("--cache-size", "300"), "argument --cache-size: must be a multiple of 256, is 300"),
        (("--prompt-format", "translategemma_template"), "argument --prompt-format: invalid choice"),
    ],
)
def test_bad_arguments(capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], line: str) -> None:
    with pytest.raises(SystemExit) as raised:
        load_error("exllamav3", Path("m"), *flags)
    assert raised.value.code == 2
    assert line in capsys.readouterr().err


@pytest.mark.parametrize(
    ("spoil", "line", "plainly"),
    [
        ("config.json", "cannot open {model}/config.json: No such file", "not an EXL3 folder"),
        ("model.safetensors", "there are no weights (*.safetensors) in {model}", "not an EXL3 folder"),
        ("tokenizer.json", "cannot open {model}/tokenizer.json: No such file", "no tokenizer.json in the folder"),
        ("architectures", "ExLlamaV3 cannot load {model}: No architecture defined in", "not a model that ExLlamaV3"),
    ],
)
def test_a_folder_that_cannot_be_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, spoil: str, line: str, plainly: str
) -> None:
    monkeypatch.setitem(sys.modules, "exllamav3", fake_exllamav3)
    monkeypatch.setitem(sys.modules, "torch", fake_torch)
    folder = tmp_path / "m"
    make_hf(folder)
    if spoil == "architectures":
        (folder / "config.json").write_text("{}")
    else:
        (folder / spoil).unlink()
    said = load_error("exllamav3", folder)
    assert said.startswith(line.format(model=folder))
    verdict = ENGINES["exllamav3"].explain(1, said)
    assert verdict is not None
    assert plainly in verdict.message
    assert verdict.permanent


def test_without_a_gpu_it_says_so(begin: Start) -> None:
    worker = begin(FAKE_GPUS="0")
    assert worker.ended() == 1
    assert worker.last_line == "ExLlamaV3 needs a GPU, and sees none here: declare `gpus` for the model"
    verdict = ENGINES["exllamav3"].explain(1, worker.log)
    assert verdict is not None
    assert (verdict.message, verdict.permanent) == ("ExLlamaV3 needs a GPU: declare `gpus`", True)


def test_gpus_that_were_given_and_are_not_seen_may_come_back(begin: Start) -> None:
    worker = begin(FAKE_GPUS="0", CUDA_VISIBLE_DEVICES="GPU-1")
    assert worker.ended() == 1
    assert worker.last_line.startswith("ExLlamaV3 sees none of the GPUs that it was given (GPU-1)")


def test_without_the_package_it_names_the_extra(begin: Start, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "torch.py").write_text("raise ImportError('libcuda.so.1: cannot open shared object file')")
    worker = begin(PYTHONPATH=str(tmp_path / "none"))
    assert worker.ended() == 1
    why = "libcuda.so.1: cannot open shared object file (it is the extra `exllamav3`)"
    assert worker.last_line == f"ExLlamaV3 cannot be used: {why}"
    verdict = ENGINES["exllamav3"].explain(1, worker.log)
    assert verdict is not None
    assert "lacks a library" in verdict.message
    assert not verdict.permanent
