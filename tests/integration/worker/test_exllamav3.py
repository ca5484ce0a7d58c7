"""ExLlamaV3 in a worker, on its fake: batching, cache, GPUs, and a generator that breaks."""

from __future__ import annotations

import http.client
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from controller.engines import ENGINES
from controller.engines.base import RenderContext
from tests.fakes import fake_exllamav3, fake_torch
from tests.support.clockwork_folders import make_hf
from tests.support.scripted_models import CHAT, USER, post
from tests.support.worker_engines import END, ROOT, load_error, start
from tests.support.worker_process import Worker, eventually, leave
from worker.__main__ import parse_engine
from worker.clockwork import SENTENCE, make_vocabulary

pytestmark = pytest.mark.engines

ENDLESS: dict[str, Any] = {"prompt": "<|assistant|>", "logit_bias": {END: -1000}, "stream": True}
HELLO = {"messages": USER}
LISTEN = ("--host", "127.0.0.1", "--port", "1", "--served-name", "m")
SPLIT = ("--cache-size", "8192", "--use-per-device")
"""On two layers of 0.6 MiB, each with 2 MiB of cache, a norm and a head."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "m"
    make_hf(folder)
    return folder


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Worker]:
    """With its own defaults."""
    with start("exllamav3", tmp_path_factory.mktemp("plain") / "log", "--model", str(model)) as running:
        yield running.ready()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Worker]:
    """Its cache has two pages."""
    flags = ("--model", str(model), "--cache-size", "512", "--cache-quant", "8")
    with start("exllamav3", tmp_path_factory.mktemp("small") / "log", *flags) as running:
        yield running.ready()


def _fake_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """The fakes, in this process, with so many GPUs."""
    monkeypatch.setitem(sys.modules, "exllamav3", fake_exllamav3)
    monkeypatch.setitem(sys.modules, "torch", fake_torch)
    monkeypatch.setenv("FAKE_GPUS", str(count))


def last_job(worker: Worker) -> int:
    """The number of the job that was begun last; -1: none was."""
    return max((int(number) for number in re.findall(r"job (\d+) starts", worker.log)), default=-1)


def test_two_streams_interleave(worker: Worker) -> None:
    before = last_job(worker)
    responses = [worker.open("POST", "/v1/completions", {**ENDLESS, "max_tokens": 100}) for _ in range(2)]
    eventually("both run", lambda: worker.figure("requests_processing") == 2)
    created = [each.getresponse().read().count(b'"text"') for each in responses]
    assert min(created) > 90
    assert f"job {before + 2} starts beside 1" in worker.log


def test_one_that_leaves_is_cancelled_in_the_library_too(worker: Worker) -> None:
    job = last_job(worker) + 1
    running = worker.open("POST", "/v1/completions", ENDLESS)
    eventually("it runs", lambda: last_job(worker) == job)
    leave(running)
    eventually("it was cancelled", lambda: f"job {job} cancelled" in worker.log)


def test_the_cache_and_the_split_are_the_library_s_unless_told_otherwise(worker: Worker, small: Worker) -> None:
    assert "exllamav3: cache of 4096, CacheLayer_fp16, {}\n" in worker.log
    assert "exllamav3: cache of 512, CacheLayer_quant, {'k_bits': 8, 'v_bits': 8}\n" in small.log
    assert "loaded, tensor_p=False" in worker.log


def test_a_request_that_waits_for_pages_gets_those_of_one_that_left(small: Worker) -> None:
    job = last_job(small) + 1
    running = small.open("POST", "/v1/completions", ENDLESS)
    eventually("it runs", lambda: last_job(small) == job)
    waiting = small.open("POST", CHAT, HELLO)
    eventually("both were taken", lambda: small.figure("requests_processing") == 2)
    assert last_job(small) == job
    leave(running)
    answer = json.loads(waiting.getresponse().read())
    assert answer["choices"][0]["message"]["content"] == SENTENCE
    assert f"job {job + 1} starts beside 0" in small.log


def test_one_that_waits_for_pages_may_leave(small: Worker) -> None:
    job = last_job(small) + 1
    running = small.open("POST", "/v1/completions", ENDLESS)
    eventually("it runs", lambda: last_job(small) == job)
    waiting = small.open("POST", CHAT, HELLO)
    eventually("both were taken", lambda: small.figure("requests_processing") == 2)
    leave(waiting)
    eventually("it is gone", lambda: f"job {job + 1} cancelled after 0 tokens" in small.log)
    assert small.figure("requests_processing") == 1
    leave(running)
    eventually("nothing runs", lambda: small.figure("requests_processing") == 0)


def test_a_long_answer_is_worked_on_in_parts(small: Worker) -> None:
    begun = len(small.log)
    answer = post(small, "/v1/completions", **{**ENDLESS, "stream": False, "max_tokens": 300})
    assert answer["usage"]["completion_tokens"] == 300
    assert re.findall(r"starts beside 0, (\d) pages", small.log[begun:]) == ["1", "2"]


def test_a_prompt_that_fills_the_cache(small: Worker) -> None:
    for length, code in ((510, None), (511, "context_length_exceeded")):
        prompt = [make_vocabulary().id_of("<|assistant|>")] * length
        answer = post(small, "/v1/completions", prompt=prompt)
        assert answer.get("error", {}).get("code") == code


def test_a_load_s_own_values_reach_the_engine_and_a_stale_lock_is_removed(model: Path, tmp_path: Path) -> None:
    engine = ENGINES["exllamav3"]
    declared = engine.definition.model_validate(
        {"backend": "exllamav3", "model_path": "m", "exllama_cache_quant": "8", "exllama_tensor_parallel": True}
    )
    bits = {"exllama_cache_k_bits": 6, "exllama_cache_v_bits": 4, "exllama_cache_size": 1024}
    loaded = declared.model_copy(update=engine.load_override(bits))
    context = RenderContext(
        "process", "m", PurePosixPath("/models"), "h", 1, PurePosixPath("/c"), executables={"python": "python"}
    )
    flags = engine.render_command(loaded, context).argv
    lock = tmp_path / "exllamav3_ext" / "lock"
    lock.parent.mkdir()
    lock.touch()
    own = ("--model", str(model), *flags[flags.index("--model") + 2 :])
    with start("exllamav3", tmp_path / "log", *own, env={"TORCH_EXTENSIONS_DIR": str(tmp_path)}) as worker:
        log = worker.ready().log
    assert "exllamav3: cache of 1024, CacheLayer_quant, {'k_bits': 6, 'v_bits': 4}\n" in log
    assert "loaded, tensor_p=True" in log
    assert (
        engine.parse_progress(""),
        engine.parse_progress(log),
        engine.parse_progress(log[: log.index("50 %") + 5]),
    ) == (None, 1.0, 0.5)
    assert not lock.exists()


@pytest.mark.parametrize(("limit", "split"), [("1,1", "[4, 0]"), ("0.003,0.003", "[1, 3]")])
def test_layers_go_to_the_next_gpu_where_one_has_what_was_claimed_of_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: Path, limit: str, split: str
) -> None:
    _fake_gpus(monkeypatch, 2)
    module, args = parse_engine("exllamav3", [*LISTEN, *("--model", str(model), *SPLIT, limit)])
    module.create(args).load_model()
    assert f"exllamav3: modules on each GPU: {split}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("gpus", "limit", "line", "plainly"),
    [
        (2, "0.002,0.003", "cannot load {model}: Insufficient VRAM in split for model and cache", "raise `vram_mib`"),
        (1, "1,1", "sees 1 of the 2 GPUs that it was given: look after the driver", "does not see all of its GPUs"),
    ],
)
def test_gpus_that_are_too_small_or_too_few_for_their_limits(
    monkeypatch: pytest.MonkeyPatch, model: Path, gpus: int, limit: str, line: str, plainly: str
) -> None:
    _fake_gpus(monkeypatch, gpus)
    output = load_error("exllamav3", model, *SPLIT, limit)
    assert output == f"ExLlamaV3 {line.format(model=model)}"
    verdict = ENGINES["exllamav3"].explain_exit(1, output)
    assert verdict is not None
    assert plainly in verdict.message
    assert not verdict.permanent


@pytest.mark.parametrize("limit", ["", "0,1", "1,-1", "1,x", "inf", "nan,1"])
def test_limits_that_are_none(model: Path, limit: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_engine("exllamav3", [*LISTEN, "--model", str(model), f"--use-per-device={limit}"])
    assert "must be numbers above 0, in GiB, one for each GPU" in capsys.readouterr().err


def test_a_generator_that_breaks_ends_the_worker(model: Path, tmp_path: Path) -> None:
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
    env = {"PYTHONPATH": f"{site}:{ROOT}"}
    with start("exllamav3", tmp_path / "log", "--model", str(model), env=env) as worker:
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            worker.ready().request("POST", CHAT, HELLO)
        assert worker.ended() == 1
        assert worker.last_line.startswith("ExLlamaV3 failed: RuntimeError('CUDA error")


@pytest.mark.parametrize(
    ("given", "line", "plainly", "permanent"),
    [
        ("", "needs a GPU, and sees none here: declare `gpus` for the model", "needs a GPU: declare `gpus`", True),
        ("GPU-1", "sees none of the GPUs that it was given (GPU-1): look after the driver", "none of its GPUs", False),
    ],
)
def test_without_a_gpu_it_says_so_and_one_that_was_given_may_come_back(
    monkeypatch: pytest.MonkeyPatch, model: Path, given: str, line: str, plainly: str, permanent: bool
) -> None:
    _fake_gpus(monkeypatch, 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    output = load_error("exllamav3", model)
    assert output == f"ExLlamaV3 {line}"
    verdict = ENGINES["exllamav3"].explain_exit(1, output)
    assert verdict is not None
    assert plainly in verdict.message
    assert verdict.permanent is permanent
