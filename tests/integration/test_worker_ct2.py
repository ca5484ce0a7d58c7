"""Real CTranslate2 in a worker: its flags, its bounds, and starts that cannot be."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controller.engines import ENGINES
from tests.support.clockwork_folders import make_ct2, write_tokenizer
from tests.support.hf_workers import load_error, start
from tests.support.scripted_model_file import speaker_vocabulary
from tests.support.scripted_models import choice, told
from tests.support.worker_process import Worker, eventually, leave
from worker.clockwork import SENTENCE, make_vocabulary

Start = Callable[..., Worker]
ROUND = ("round ", "and ")


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Start]:
    """Starts a worker on a folder."""
    workers: list[Worker] = []

    def begun(model: Path, *flags: str, **env: str) -> Worker:
        workers.append(start("ct2", tmp_path / f"{len(workers)}.log", model, *flags, env=env or None))
        return workers[-1]

    yield begun
    for worker in workers:
        worker.__exit__()


def test_flags_reach_the_engine_and_bound_a_request(begin: Start, tmp_path: Path) -> None:
    make_ct2(tmp_path / "m", ROUND, endless=True)
    flags = ("--compute-type", "int8", "--max-tokens", "20", "--inter-threads", "2", "--intra-threads", "1")
    worker = begin(tmp_path / "m", *flags).ready()
    answer = told(worker)
    assert answer["usage"] == {"prompt_tokens": 8, "completion_tokens": 12, "total_tokens": 20}
    assert answer["choices"][0]["finish_reason"] == "length"
    status, body = worker.ask("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 20}]})
    error = json.loads(body)["error"]
    assert (status, error["code"]) == (400, "context_length_exceeded")
    assert error["message"] == "The prompt has 23 tokens, more than fit the context of 20."
    assert told(worker, "/v1/completions", prompt="a", temperature=1, seed=1)["error"]["param"] == "seed"
    assert told(worker, "/v1/completions", prompt="a", repeat_penalty=0)["error"]["param"] == "repeat_penalty"


def test_two_at_a_time_and_a_third_waits(begin: Start, tmp_path: Path) -> None:
    make_ct2(tmp_path / "m", ROUND, endless=True)
    worker = begin(tmp_path / "m", "--inter-threads", "2", "--intra-threads", "1").ready()
    asked = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
    first = worker.open("POST", "/v1/chat/completions", asked)
    eventually("it runs", lambda: worker.figure("tokens_predicted_total") > 0)
    assert choice(worker, max_tokens=3)["message"]["content"] == "round and round "
    assert worker.figure("requests_processing") == 1, "the first one runs on"
    running = [first, *(worker.open("POST", "/v1/chat/completions", asked) for _ in range(2))]
    eventually("two run", lambda: worker.figure("requests_processing") == 2)
    assert worker.figure("requests_deferred") == 1
    for each in running:
        leave(each)
    eventually("all are gone", lambda: worker.figure("requests_processing") + worker.figure("requests_deferred") == 0)


def test_a_signal_ends_it_with_work_running(begin: Start, tmp_path: Path) -> None:
    make_ct2(tmp_path / "m", ROUND, endless=True)
    worker = begin(tmp_path / "m").ready()
    connection = worker.open("POST", "/v1/completions", {"prompt": "<|assistant|>", "stream": True})
    eventually("tokens are made", lambda: worker.figure("tokens_predicted_total") > 0)
    assert worker.stop() == 0
    assert b"model_unloading" in connection.getresponse().read()


def test_the_tokenizer_may_lie_elsewhere(begin: Start, tmp_path: Path) -> None:
    make_ct2(tmp_path / "m")
    texts = tmp_path / "texts"
    texts.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (tmp_path / "m" / name).rename(texts / name)
    worker = begin(tmp_path / "m", "--tokenizer", str(texts)).ready()
    assert choice(worker)["message"]["content"] == SENTENCE
    write_tokenizer(tmp_path / "other", speaker_vocabulary(["The quick"])[0])
    wrong = begin(tmp_path / "m", "--tokenizer", str(tmp_path / "other"))
    assert wrong.ended() == 1
    number = make_vocabulary().padding_from
    said = f"is not this model's: its token {number} is 'The quick', not '<|pad{number}|>'"
    assert wrong.last_line == f"the tokenizer in {tmp_path / 'other'} {said}"


def _no_weights(model: Path) -> None:
    (model / "model.bin").unlink()


def _no_tokenizer(model: Path) -> None:
    (model / "tokenizer.json").unlink()


def _broken_tokenizer(model: Path) -> None:
    (model / "tokenizer.json").write_text("{}")


def _broken_config(model: Path) -> None:
    (model / "tokenizer_config.json").write_text("[]")


def _no_template(model: Path) -> None:
    write_tokenizer(model, make_vocabulary(), None)


def _bad_template(model: Path) -> None:
    write_tokenizer(model, make_vocabulary(), "{% for m in messages %}")


def _other_weights(model: Path) -> None:
    (model / "model.bin").write_bytes(b"GGUF and then something else")


def _cut_weights(model: Path) -> None:
    with (model / "model.bin").open("r+b") as file:
        file.truncate(300_000)


@pytest.mark.parametrize(
    ("harm", "flags", "line", "plainly"),
    [
        (_no_weights, (), "cannot open {model}/model.bin: No such file or directory", "not a CTranslate2 folder"),
        (_no_tokenizer, (), "cannot open {model}/tokenizer.json: No such file", "no tokenizer.json in the folder"),
        (_broken_tokenizer, (), "tokenizers cannot load {model}/tokenizer.json: ", "the tokenizer cannot be read"),
        (_broken_config, (), "{model}/tokenizer_config.json is not a JSON object", "the tokenizer cannot be read"),
        (
            _no_template,
            ("--prompt-format", "generic"),
            "--prompt-format generic: there is no chat template in {model}",
            "no chat template in the folder",
        ),
        (_bad_template, (), "the chat template default cannot be used: ", "the chat template cannot be used"),
        (_other_weights, (), "CTranslate2 cannot load {model}: Unsupported model binary version", "not a model"),
        (_cut_weights, (), "CTranslate2 cannot load {model}: ", "not a model that CTranslate2 can load"),
        (
            lambda model: None,
            ("--compute-type", "float16"),
            "CTranslate2 cannot load {model}: Requested float16 compute type",
            "the hardware lacks this ct2_compute_type",
        ),
    ],
)
def test_a_start_that_cannot_be_says_why(
    tmp_path: Path, harm: Callable[[Path], None], flags: tuple[str, ...], line: str, plainly: str
) -> None:
    model = tmp_path / "m"
    make_ct2(model)
    harm(model)
    said = load_error("ct2", model, *flags)
    assert said.startswith(line.format(model=model))
    verdict = ENGINES["ct2"].explain(1, said)
    assert verdict is not None
    assert plainly in verdict.message
    assert verdict.permanent


def test_without_the_package_it_names_the_extra(begin: Start, tmp_path: Path) -> None:
    make_ct2(tmp_path / "m")
    (tmp_path / "broken" / "ctranslate2").mkdir(parents=True)
    (tmp_path / "broken" / "ctranslate2" / "__init__.py").write_text("import libct2")
    worker = begin(tmp_path / "m", PYTHONPATH=str(tmp_path / "broken"))
    assert worker.ended() == 1
    assert worker.last_line == "CTranslate2 cannot be used: No module named 'libct2' (it is the extra `ct2`)"
    verdict = ENGINES["ct2"].explain(1, worker.log)
    assert verdict is not None
    assert (verdict.message, verdict.permanent) == ("CTranslate2 is not installed (extra `ct2`)", True)
