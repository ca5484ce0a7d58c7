"""ONNX embeddings in this process: real ONNX Runtime on models whose vectors numpy knows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.campaign import campaign_count
from tests.support.onnx_models import (
    SPECIAL_TOKENS,
    VOCABULARY,
    WIDTH,
    token_vectors,
    unit,
    write_model,
    write_vocabulary,
)
from worker.__main__ import parse_engine
from worker.engine import Job
from worker.engines.onnx import BATCH_TOKENS, Onnx, plan_batches
from worker.errors import JobCancelledError, LoadError
from worker.metrics import Counters

TEXTS = ["Hello WORLD", "the foxes jump!", "zzz", "HÉLLO"]
TOKENS = ["[CLS] hello world [SEP]", "[CLS] the fox ##es jump ! [SEP]", "[CLS] [UNK] [SEP]", "[CLS] hello [SEP]"]
"""`TEXTS`, as a lower-casing BERT cuts them."""

Make = Callable[..., Onnx]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """An engine that has loaded, of a model that `write_model` writes, with a vocabulary beside it."""

    def made(*flags: str, **model: Any) -> Onnx:
        write_vocabulary(tmp_path / "words-vocab.txt")
        return loaded(write_model(tmp_path / "words.onnx", **model), *flags)

    return made


def loaded(path: Path, *flags: str) -> Onnx:
    listen = ("--host", "127.0.0.1", "--port", "1", "--served-name", "demo", "--model", str(path))
    module, args = parse_engine("onnx", [*listen, *flags])
    engine: Onnx = module.create(args)
    engine.load_model()
    return engine


def embedded(engine: Onnx, texts: list[str] = TEXTS) -> Any:
    return np.asarray(engine.embed_texts(texts, Job(Counters())))


def close(found: Any, expected: Any) -> bool:
    return bool(np.allclose(found, expected, atol=1e-6))


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), [unit(token_vectors(each).mean(0)) for each in TOKENS]),
        (("--pooling", "cls"), [unit(token_vectors(each)[0]) for each in TOKENS]),
        (("--no-normalize",), [token_vectors(each).mean(0) for each in TOKENS]),
    ],
)
def test_exact_vectors_of_texts_of_different_lengths(make: Make, flags: tuple[str, ...], expected: Any) -> None:
    assert close(embedded(make(*flags)), expected)


@pytest.mark.parametrize(
    "model",
    [
        {"integers": "INT32"},
        {"shape": (1, "n")},
        {"shape": (3, 16)},
        {"names": ("input_word_ids:0", "input_mask:0", "segment_ids:0")},
        {"outputs": ("token_embeddings", "sentence_pooled")},
    ],
)
def test_models_as_they_are_exported_elsewhere(make: Make, model: dict[str, Any]) -> None:
    assert close(embedded(make(**model)), [unit(token_vectors(each).mean(0)) for each in TOKENS])


def test_an_output_that_is_pooled_already_is_taken_as_it_is(make: Make) -> None:
    engine = make("--no-normalize", outputs=("token_embeddings", "sentence_embedding"))
    assert close(embedded(engine), [token_vectors(each)[0] * 2 for each in TOKENS])


def test_tokens_are_counted_and_long_texts_are_cut(make: Make) -> None:
    job = Job(Counters())
    make().embed_texts(TEXTS, job)
    assert job.prompt_tokens == sum(len(each.split()) for each in TOKENS)
    engine, job = make("--max-tokens", "4"), Job(Counters())
    assert engine.context_length == 4
    assert close(engine.embed_texts(["hello world hello world"], job), [unit(token_vectors(TOKENS[0]).mean(0))])
    assert job.prompt_tokens == 4
    assert make().context_length == 512, "BERT's, where a vocabulary is all there is"
    assert make("--max-tokens", "100", shape=(2, 16)).context_length == 16, "the model takes no more"


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        ({"max_position_embeddings": 8}, 8),
        ({"max_position_embeddings": 10, "pad_token_id": 1, "model_type": "roberta"}, 8),
        ({"max_position_embeddings": 10, "pad_token_id": 1, "model_type": "xlm-roberta"}, 8),
        ({"max_position_embeddings": 9, "pad_token_id": 0, "model_type": "bert"}, 9),
        ({"max_position_embeddings": -1}, None),
        ({}, None),
    ],
)
def test_a_model_has_no_more_positions_than_its_configuration_says(
    make: Make, tmp_path: Path, config: dict[str, Any], limit: int | None
) -> None:
    import tokenizers

    path = tmp_path / "tokenizer.json"
    write_vocabulary(tmp_path / "v.txt")
    tokenizers.BertWordPieceTokenizer(str(tmp_path / "v.txt"), lowercase=True).save(str(path))
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert make("--tokenizer", str(path)).context_length == limit
    assert make("--tokenizer", str(path), "--max-tokens", "5").context_length == 5
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 6}')
    assert make("--tokenizer", str(path)).context_length == 6, "the tokenizer names a limit"


def test_many_texts_keep_their_order(make: Make) -> None:
    lengths = [*range(1, 400, 4)] * 3
    texts = [" ".join(["hello"] * length) for length in lengths]
    once = {length: unit(token_vectors(f"[CLS] {'hello ' * length} [SEP]").mean(0)) for length in {*lengths}}
    assert close(embedded(make(), texts), [once[length] for length in lengths])


@settings(max_examples=campaign_count(40, 2_000))
@given(st.lists(st.integers(1, 5000), max_size=60), st.none() | st.integers(1, 5))
def test_batches_hold_every_text_once_and_are_bounded(lengths: list[int], rows: int | None) -> None:
    made = [*plan_batches(lengths, rows)]
    assert sorted(number for batch in made for number in batch) == [*range(len(lengths))]
    for batch in made:
        widest = max(lengths[number] for number in batch)
        assert len(batch) <= rows if rows else len(batch) == 1 or len(batch) * widest <= BATCH_TOKENS


def test_a_cancelled_request_ends_with_its_batch(make: Make) -> None:
    engine, job = make(), Job(Counters())
    session, ran = engine._session, []

    class Cancels:
        def run(self, outputs: Any, feed: Any) -> Any:
            ran.append(feed["input_ids"].shape)
            job.cancel()
            return session.run(outputs, feed)

    engine._session = Cancels()
    with pytest.raises(JobCancelledError):
        engine.embed_texts(["hello " * 500] * 100, job)
    assert len(ran) == 1
    rows, width = ran[0]
    assert rows * width <= BATCH_TOKENS


def test_a_vocabulary_cuts_texts_as_bert_does(tmp_path: Path) -> None:
    import tokenizers

    from worker.hf.folder import load_tokenizer

    texts = [*TEXTS, "", "  the\tquick\u00a0brown  ", "hello[SEP]world", "\u4e2d fox\u0000es", "he\u0301llo"]
    for config, lower in (("", True), ('{"do_lower_case": false}', False)):
        path = write_vocabulary(tmp_path / "vocab.txt")
        if config:
            (tmp_path / "tokenizer_config.json").write_text(config)
        own = load_tokenizer(path, None)
        bert = tokenizers.BertWordPieceTokenizer(str(path), lowercase=lower)
        assert [each.tokens for each in own.encode(texts)] == [each.tokens for each in bert.encode_batch(texts)]
    (tmp_path / "tokenizer_config.json").unlink()
    path.write_text("\n".join([*VOCABULARY, "Hello"]) + "\n")
    assert load_tokenizer(path, None).encode(["Hello hello"])[0].tokens == ["[CLS]", "Hello", "hello", "[SEP]"]


def json_tokenizer(path: Path) -> Path:
    """The vocabulary as a `tokenizer.json` that cuts after 5 tokens, and pads to 9."""
    import tokenizers

    write_vocabulary(path.with_name("v.txt"))
    made = tokenizers.BertWordPieceTokenizer(str(path.with_name("v.txt")), lowercase=True)
    made.enable_truncation(5)
    made.enable_padding(length=9)
    made.save(str(path))
    return path


def test_a_tokenizer_json_rules_but_for_its_padding(tmp_path: Path) -> None:
    model = write_model(tmp_path / "words.onnx")
    json_tokenizer(tmp_path / "tokenizer.json")
    engine = loaded(model)
    assert engine.context_length == 5
    cut = "[CLS] the fox ##es [SEP]"
    assert close(
        embedded(engine, ["hello world", TEXTS[1]]), [unit(token_vectors(each).mean(0)) for each in (TOKENS[0], cut)]
    )
    named = loaded(model, "--tokenizer", str(json_tokenizer(tmp_path / "other.json")), "--max-tokens", "7")
    assert close(embedded(named, [TEXTS[1]]), [unit(token_vectors(TOKENS[1]).mean(0))])


def test_which_tokenizer_lies_beside_a_model(tmp_path: Path) -> None:
    model = write_model(tmp_path / "words.onnx")
    with pytest.raises(LoadError, match=r"no tokenizer beside .*put its tokenizer\.json or words-vocab\.txt there"):
        loaded(model)
    for name in ("a-vocab.txt", "vocab.txt"):
        write_vocabulary(tmp_path / name)
        if name == "a-vocab.txt":
            assert loaded(model).context_length == 512
    with pytest.raises(LoadError, match=r"several vocabularies lie beside .*a-vocab.txt, vocab.txt"):
        loaded(model)
    json_tokenizer(tmp_path / "tokenizer.json")
    assert loaded(model).context_length == 5
    write_vocabulary(tmp_path / "words-vocab.txt")
    assert loaded(model).context_length == 512


@pytest.mark.parametrize(
    ("model", "tokenizer", "message"),
    [
        (b"GGUF", "", "it is not an ONNX file"),
        ({"names": ("pixels",)}, "", "the model has an input `pixels`"),
        ({"names": ("input_ids", "position_ids")}, "", "the model has an input `position_ids`"),
        ({"names": ("attention_mask", "input_mask")}, "", "no input `input_ids`"),
        ({}, "hello\nworld\n", "is not a BERT vocabulary: it has no \\[UNK\\]"),
        ({}, "{", "is not a tokenizer.json"),
        ({}, "\udcff\n", "is not a vocabulary: it is not UTF-8"),
    ],
)
def test_what_cannot_be_loaded(tmp_path: Path, model: Any, tokenizer: str, message: str) -> None:
    path = tmp_path / "words.onnx"
    if isinstance(model, bytes):
        path.write_bytes(model)
    else:
        write_model(path, **model)
    name = "tokenizer.json" if tokenizer == "{" else "words-vocab.txt"
    write_vocabulary(tmp_path / name)
    if tokenizer:
        (tmp_path / name).write_bytes(tokenizer.encode(errors="surrogateescape"))
    with pytest.raises(LoadError, match=message):
        loaded(path)


def test_no_room_for_a_text(make: Make) -> None:
    with pytest.raises(LoadError, match=f"--max-tokens 2 leaves no room for a text: .* {SPECIAL_TOKENS} tokens"):
        make("--max-tokens", "2")
    assert embedded(make("--max-tokens", "3")).shape == (len(TEXTS), WIDTH)
