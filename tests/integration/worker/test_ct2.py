"""CTranslate2's tokenizer, which may be another model's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.clockwork_folders import make_ct2, write_tokenizer
from tests.support.scripted_model_file import speaker_vocabulary
from tests.support.scripted_models import choice
from tests.support.worker_engines import load_error, start
from worker.clockwork import SENTENCE, make_vocabulary

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
    said = f"is not this model's: its token {number} is 'The quick', not '<|pad{number}|>'"
    wrong = load_error("ct2", model, "--tokenizer", str(tmp_path / "other"))
    assert wrong == f"the tokenizer in {tmp_path / 'other'} {said}"
