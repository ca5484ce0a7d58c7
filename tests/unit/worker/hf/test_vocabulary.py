"""Hugging Face tokenizers against the library's own decoding, and folders whose files are broken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.campaign import campaign_count
from tests.support.clockwork_folders import write_tokenizer
from tests.support.scripted_model_file import speaker_vocabulary
from worker.clockwork import make_vocabulary
from worker.errors import LoadError, RequestError
from worker.hf.folder import HFFolder, HFVocabulary
from worker.text.answer_text import TokenReader


def byte_level(folder: Path) -> None:
    says = ["<think>", "<tool>"]
    write_tokenizer(folder, speaker_vocabulary(says)[0], says=says, hidden=["<tool>"])


def sentence_piece(folder: Path) -> None:
    """As Llama 2's and Gemma's: a letter for the space, and bytes for what is in no piece."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"helowrd", "he", "▁he"]
    model = tokenizers.models.BPE(
        {piece: number for number, piece in enumerate(pieces)},
        [("h", "e"), ("▁", "he")],
        unk_token="<unk>",
        byte_fallback=True,
        fuse_unk=True,
    )
    tokenizer: Any = tokenizers.Tokenizer(model)
    tokenizer.normalizer = tokenizers.normalizers.Replace(" ", "▁")
    decoders = tokenizers.decoders
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.enable_truncation(5)
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": {"content": "</s>"}}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7]}))


MAKERS = (byte_level, sentence_piece)


@pytest.fixture(scope="module", params=MAKERS, ids=lambda maker: maker.__name__)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("folders") / "m"
    request.param(path)
    return path


@pytest.fixture(scope="module")
def vocabulary(folder: Path) -> HFVocabulary:
    return HFVocabulary(HFFolder(folder, folder))


@given(text=st.text() | st.text(st.sampled_from("hello wörld 😀\n<0xFF>▁")))
@settings(max_examples=campaign_count(30, 1_500))
def test_a_text_comes_back_token_by_token(vocabulary: HFVocabulary, folder: Path, text: str) -> None:
    tokens = vocabulary.tokenize(text, add_special=False, parse_special=False)
    whole = b"".join(vocabulary.token_texts(tokens)).decode()
    theirs: Any = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert whole == theirs.decode(tokens, skip_special_tokens=False)
    assert whole == text.encode(errors="replace").decode().replace("▁", " " if folder_is_pieces(theirs) else "▁")
    reader = TokenReader(vocabulary)
    parts = [reader.feed_token(token) for token in tokens]
    assert "\ufffd" not in "".join(parts) or "\ufffd" in text
    assert "".join(parts) + reader.flush_text() == whole


def folder_is_pieces(tokenizer: Any) -> bool:
    return tokenizer.token_to_id("▁") is not None


def test_special_tokens_are_read_hidden_and_shown(tmp_path: Path) -> None:
    byte_level(tmp_path / "m")
    vocabulary = HFVocabulary(HFFolder(tmp_path / "m", tmp_path / "m"))
    think, tool = vocabulary.tokenize("<think><tool>", add_special=False, parse_special=True)
    assert [vocabulary.token_text(token, with_special=False) for token in (think, tool)] == [b"<think>", b""]
    assert vocabulary.token_texts([think, tool]) == [b"<think>", b"<tool>"]
    assert vocabulary.special_tokens_in(["<tool>"]) == {tool}
    assert len(vocabulary.tokenize("<tool>", add_special=False, parse_special=False)) == len("<tool>")
    assert vocabulary.end_tokens == {make_vocabulary().id_of("<|end|>")}
    for unknown in (-1, vocabulary.size):
        with pytest.raises(RequestError, match=f"There is no token {unknown}: the model has {vocabulary.size}."):
            vocabulary.token_texts([unknown])


def test_what_the_files_say(tmp_path: Path) -> None:
    sentence_piece(tmp_path / "m")
    folder = HFFolder(tmp_path / "m", tmp_path / "m")
    vocabulary = HFVocabulary(folder)
    assert vocabulary.end_tokens == {2, 7}
    assert vocabulary.tokenize("he", add_special=True, parse_special=True)[0] == 1
    assert len(vocabulary.tokenize("h" * 50, add_special=False, parse_special=True)) == 50, "no truncation"
    assert folder.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert (folder.templates, folder.longest) == ({}, None)


@pytest.mark.parametrize(
    ("files", "templates"),
    [
        ({"tokenizer_config.json": '{"chat_template": "a"}'}, {"default": "a"}),
        (
            {"tokenizer_config.json": '{"chat_template": [{"name": "default", "template": "a"}, '
             '{"name": "tool_use", "template": "b"}]}'},
            {"default": "a", "tool_use": "b"},
        ),
        ({"chat_template.json": '{"chat_template": "c"}'}, {"default": "c"}),
        ({"chat_template.jinja": "d", "tokenizer_config.json": '{"chat_template": "a"}'}, {"default": "d"}),
    ],
)  # fmt: skip
def test_where_chat_templates_are(tmp_path: Path, files: dict[str, str], templates: dict[str, str]) -> None:
    for name, content in {"tokenizer.json": "{}", **files}.items():
        (tmp_path / name).write_text(content)
    assert HFFolder(tmp_path, tmp_path).templates == templates


@pytest.mark.parametrize(("length", "longest"), [(4096, 4096), (10**30, None), (1e30, None), (None, None), (0, None)])
def test_how_long_a_text_may_be(tmp_path: Path, length: Any, longest: int | None) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": length}))
    assert HFFolder(tmp_path, tmp_path).longest == longest


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tokenizer.json", None, "cannot open {path}: No such file or directory"),
        ("tokenizer_config.json", "nonsense", "{path} is not JSON: "),
        ("config.json", "[]", "{path} is not a JSON object"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, content: str | None, words: str) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    path = tmp_path / name
    write: Callable[[], object] = path.unlink if content is None else lambda: path.write_text(content or "")
    write()
    with pytest.raises(LoadError) as raised:
        HFFolder(tmp_path, tmp_path)
    assert str(raised.value).startswith(words.format(path=path))


def broken_folder(path: Path, tokenizer: object) -> HFFolder:
    (path / "tokenizer.json").write_text("{}")
    (path / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return HFFolder(path, path)


@pytest.mark.parametrize("entry", [{"template": "x"}, {"name": "x"}, "x", 7])
def test_a_template_without_its_name_or_text_is_refused(entry: object, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="`chat_template`"):
        _ = broken_folder(tmp_path, {"chat_template": [entry]}).templates


def test_a_template_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(LoadError, match=r"chat_template\.jinja is not UTF-8"):
        _ = broken_folder(tmp_path, {}).templates
