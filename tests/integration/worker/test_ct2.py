"""CTranslate2's tokenizer, which may be another model's, and what it and ExLlamaV3 (on its fake) do alike."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clockwork_folders import make_ct2, write_tokenizer
from tests.support.scripted_model_file import speaker_vocabulary
from tests.support.scripted_models import CHAT, USER, choice, post
from tests.support.worker_engines import Fleet, fleet_in, load_error, start
from tests.support.worker_process import Worker
from worker.clockwork import COMPLETION_TOKENS, SENTENCE, make_vocabulary

pytestmark = pytest.mark.engines


def test_the_tokenizer_may_lie_elsewhere(tmp_path: Path) -> None:
    model, texts = tmp_path / "m", tmp_path / "texts"
    make_ct2(model)
    texts.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (model / name).rename(texts / name)
    with start("ct2", tmp_path / "log", "--model", str(model), "--tokenizer", str(texts)) as worker:
        assert choice(worker.ready())["message"]["content"] == SENTENCE
    write_tokenizer(tmp_path / "other", speaker_vocabulary(["The quick"])[0])
    number = make_vocabulary().padding_from
    output = f"is not this model's: its token {number} is 'The quick', not '<|pad{number}|>'"
    wrong = load_error("ct2", model, "--tokenizer", str(tmp_path / "other"))
    assert wrong == f"the tokenizer in {tmp_path / 'other'} {output}"


WORDS = COMPLETION_TOKENS - 1


@pytest.fixture(scope="module", params=["ct2", "exllamav3"])
def endless(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """It says the sentence again and again, and its folder has no chat template."""
    fleet: Fleet
    with fleet_in(tmp_path_factory.mktemp("fleet")) as fleet:
        yield fleet.says(request.param, (), None, endless=True)


def complete(worker: Worker, **fields: object) -> str:
    answer = post(worker, "/v1/completions", prompt="<|assistant|>", **fields)
    text: str = answer["choices"][0]["text"]
    return text


def test_a_folder_without_a_chat_template_completes_texts_alone(endless: Worker) -> None:
    assert complete(endless, max_tokens=3) == "The quick brown"
    status, body = endless.request("POST", CHAT, {"messages": USER})
    assert (status, json.loads(body)["error"]["param"]) == (400, "messages")
    assert "send its prompt to /v1/completions" in body


def test_fields_that_say_nothing_are_taken(endless: Worker) -> None:
    neutral = {"typical_p": 1, "mirostat_mode": 0, "presence_penalty": 0, "frequency_penalty": 0, "min_p": 0}
    assert complete(endless, max_tokens=WORDS, temperature=0, seed=3, **neutral) == SENTENCE


def test_a_penalty_of_what_was_said_reaches_the_engine(endless: Worker) -> None:
    assert complete(endless, max_tokens=2 * WORDS) == SENTENCE * 2
    bored = complete(endless, max_tokens=2 * WORDS, temperature=1, repeat_penalty=1000.0)
    assert bored != SENTENCE * 2
    assert bored.startswith("The quick brown")
