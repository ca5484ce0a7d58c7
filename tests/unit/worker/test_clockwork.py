"""The demo model: what is in the file, and that it is written whole and the same each time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from worker import clockwork
from worker.clockwork import SENTENCE, gguf_name, interleave_rotary, main, make_model, make_vocabulary, make_weights
from worker.text.answer_text import byte_alphabet


def spelled(tokens: list[str]) -> str:
    letters = {letter: byte for byte, letter in byte_alphabet().items()}
    return bytes(letters[letter] for token in tokens for letter in token).decode()


def test_the_chain_spells_the_sentence() -> None:
    vocabulary = make_vocabulary()
    start, *words, end = (vocabulary.tokens[token] for token in vocabulary.chain)
    assert (start, spelled(words), end) == ("<|assistant|>", SENTENCE, "<|end|>")
    assert len(words) + 1 == clockwork.COMPLETION_TOKENS


def test_the_vocabulary_has_a_round_size_no_token_twice_and_merges_that_join_two_known_ones_to_a_third() -> None:
    vocabulary = make_vocabulary()
    assert len(set(vocabulary.tokens)) == len(vocabulary.tokens)
    assert len(vocabulary.tokens) % clockwork.VOCAB_MULTIPLE == 0
    assert all({left, right, left + right} <= set(vocabulary.tokens) for left, right in vocabulary.merges)


def test_greedy_decoding_by_hand_walks_the_chain() -> None:
    vocabulary = make_vocabulary()
    weights = make_weights(vocabulary)
    embedding, head = weights["model.embed_tokens.weight"], weights["lm_head.weight"]
    walked = [vocabulary.chain[0]]
    for _ in vocabulary.chain[1:]:
        state = embedding[walked[-1]]
        logits = head @ (state / np.sqrt(np.mean(state**2)))
        others = np.delete(logits, logits.argmax())
        assert logits.max() - others.max() > 20, "the next word must be certain at any usual temperature"
        walked.append(int(logits.argmax()))
    assert tuple(walked) == vocabulary.chain


def test_attention_and_feed_forward_add_nothing() -> None:
    weights = make_weights(make_vocabulary())
    silent = [name for name in weights if name.endswith(("o_proj.weight", "down_proj.weight"))]
    assert len(silent) == 2 * clockwork.LAYERS
    assert not any(weights[name].any() for name in silent)


def test_the_rotary_halves_become_pairs() -> None:
    rows = np.arange(2 * 8, dtype=np.float32).reshape(16, 1)
    assert interleave_rotary(rows, heads=2).ravel().tolist() == [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lm_head.weight", "output.weight"),
        ("model.norm.weight", "output_norm.weight"),
        ("model.layers.1.self_attn.q_proj.weight", "blk.1.attn_q.weight"),
    ],
)
def test_tensors_have_the_names_of_gguf(name: str, expected: str) -> None:
    assert gguf_name(name) == expected


def test_the_file_holds_what_engines_read(tmp_path: Path) -> None:
    from gguf import GGUFReader

    make_model(tmp_path / "m.gguf", context=8192)
    reader = GGUFReader(tmp_path / "m.gguf")
    read = {name: reader.fields[name].contents() for name in reader.fields}
    vocabulary = make_vocabulary()
    assert read["general.architecture"] == "llama"
    assert read["llama.context_length"] == 8192
    assert read["tokenizer.chat_template"] == clockwork.CHAT_TEMPLATE
    assert read["tokenizer.ggml.tokens"] == list(vocabulary.tokens)
    assert read["tokenizer.ggml.eos_token_id"] == vocabulary.id_of("<|end|>")
    assert len(reader.tensors) == 3 + 9 * clockwork.LAYERS


def test_the_same_bytes_every_time_and_nothing_beside_them(tmp_path: Path) -> None:
    make_model(tmp_path / "one" / "m.gguf", tmp_path / "hf")
    make_model(tmp_path / "two" / "m.gguf", tmp_path / "hf2")
    assert (tmp_path / "one" / "m.gguf").read_bytes() == (tmp_path / "two" / "m.gguf").read_bytes()
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["m.gguf"]
    names = {path.name for path in (tmp_path / "hf").iterdir()}
    assert names == {
        *("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    }
    assert all((tmp_path / "hf" / name).read_bytes() == (tmp_path / "hf2" / name).read_bytes() for name in names)


def test_the_hugging_face_form_has_the_same_weights(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    make_model(tmp_path / "m.gguf", tmp_path)
    vocabulary = make_vocabulary()
    weights, loaded = make_weights(vocabulary), load_file(tmp_path / "model.safetensors")
    assert loaded.keys() == weights.keys()
    assert all((loaded[name] == weights[name]).all() for name in weights)
    assert json.loads((tmp_path / "config.json").read_text())["vocab_size"] == len(vocabulary.tokens)


def test_a_write_that_fails_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"old")

    def fail() -> None:
        with clockwork.replace_file(path) as draft:
            draft.write_bytes(b"half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_command_says_in_one_line_where_it_cannot_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as exiting:
        main([str(tmp_path / "file" / "m.gguf")])
    assert str(exiting.value) == f"cannot write {tmp_path / 'file'}: File exists"
    main([str(tmp_path / "m.gguf")])
    assert (tmp_path / "m.gguf").read_bytes()[:4] == b"GGUF"


def test_the_sentence_can_be_had_without_the_heavy_packages() -> None:
    code = "import sys, worker.clockwork; print(sorted({'numpy', 'gguf', 'safetensors'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
