"""A model's folder in Hugging Face's form: its files, vocabulary, and the tokenizer of embedding models."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from worker.errors import LoadError, RequestError
from worker.preflight import check_file
from worker.text.answer_text import Vocabulary, byte_alphabet

TOKENIZER: Final = "tokenizer.json"
_NO_LENGTH: Final = 10**9
"""A `model_max_length` of this or more means unknown: transformers writes 10**30."""


class HFFolder:
    """What the JSON files and chat templates beside a `tokenizer.json` say. Creating it, and `templates`, read files,
    and raise LoadError if one that is there cannot be read or is not a JSON object; missing ones are no error, but
    `tokenizer.json` is."""

    def __init__(self, folder: Path, model: Path) -> None:
        """Read the JSON files. `folder` holds the tokenizer, and `model` the weights; both may be the same;
        `config.json` and `generation_config.json` are read in both. Blocks. Raises LoadError if `tokenizer.json` is
        missing, or another file cannot be read or is not a JSON object; other missing files are no error."""
        self.path = folder
        check_file(folder / TOKENIZER)
        self._tokenizer = _object(folder / "tokenizer_config.json")
        names = ("config.json", "generation_config.json")
        self._others = [_object(each / name) for each in {folder: None, model: None} for name in names]

    @property
    def special_tokens(self) -> dict[str, str]:
        """Texts of special tokens by the names that templates use (`bos_token`, `eos_token`). Only names that end with
        `_token` count. May be empty."""
        return dict(self._specials())

    @property
    def templates(self) -> dict[str, str]:
        """Chat templates (Jinja sources) by name; the one for general use is `default`. Empty if the folder has none.
        Reads the files at each access. Raises LoadError if one of them cannot be read, or an entry lacks its name."""
        value = self._tokenizer.get("chat_template") or _object(self.path / "chat_template.json").get("chat_template")
        entries = value if isinstance(value, list) else [{"name": "default", "template": value}] if value else []
        if not all(isinstance(each, dict) and {"name", "template"} <= each.keys() for each in entries):
            raise LoadError(f"{self.path}: an entry of `chat_template` has no `name` or no `template`")
        templates = {str(each["name"]): str(each["template"]) for each in entries}
        file = self.path / "chat_template.jinja"
        return templates | ({"default": _text(file)} if file.exists() else {})

    @property
    def end_token_ids(self) -> frozenset[int]:
        """Ids of the tokens that end an answer, where the files give ids and not names. May be empty."""
        return frozenset(
            number for each in self._others for number in _list(each.get("eos_token_id")) if isinstance(number, int)
        )

    @property
    def end_tokens(self) -> frozenset[str]:
        """Names of the tokens that end an answer, where the files give names and not ids. May be empty."""
        names = (self.special_tokens.get("eos_token"), *(each.get("eos_token") for each in self._others))
        return frozenset(name for name in names if isinstance(name, str) and name)

    @property
    def longest(self) -> int | None:
        """Maximum tokens that the model was made for (`model_max_length`); None: not stated."""
        length = self._tokenizer.get("model_max_length")
        return length if isinstance(length, int) and 0 < length < _NO_LENGTH else None

    def _specials(self) -> Iterator[tuple[str, str]]:
        for name, value in self._tokenizer.items():
            content = value.get("content") if isinstance(value, dict) else value
            if name.endswith("_token") and isinstance(content, str):
                yield name, content


def _object(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        content = json.loads(_text(path))
    except ValueError as error:
        raise LoadError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise LoadError(f"{path} is not a JSON object")
    return content


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise LoadError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise LoadError(f"{path} is not UTF-8") from None


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value]


_BYTE: Final = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE: Final = "\N{LOWER ONE EIGHTH BLOCK}"
"""SentencePiece's mark for a space."""


class HFVocabulary(Vocabulary):
    """The vocabulary of a folder's `tokenizer.json`. Creating it raises LoadError if the file cannot be loaded,
    ImportError without `tokenizers`. `end_tokens` are the ids of the tokens that end an answer."""

    def __init__(self, folder: HFFolder) -> None:
        # Untyped on purpose: type checks must not depend on whether the extra is installed.
        self._tokenizer: Any = _load_tokenizer(folder)
        self._plain: Any = _load_tokenizer(folder)
        self._plain.encode_special_tokens = True
        added_tokens = self._tokenizer.get_added_tokens_decoder()
        self._added: dict[int, bytes] = {number: token.content.encode() for number, token in added_tokens.items()}
        self._special = frozenset(number for number, token in added_tokens.items() if token.special)
        self.size: int = max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        kinds = {*_kinds(json.loads((folder.path / TOKENIZER).read_text(encoding="utf-8")).get("decoder"))}
        self._bytes = {letter: byte for byte, letter in byte_alphabet().items()} if "ByteLevel" in kinds else None
        self._has_bytes = "ByteFallback" in kinds
        end_token_ids = (self._tokenizer.token_to_id(name) for name in folder.end_tokens)
        self.end_tokens = folder.end_token_ids | {number for number in end_token_ids if number is not None}

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        tokenizer = self._tokenizer if parse_special else self._plain
        valid_text = text.encode(errors="replace").decode()
        tokens: list[int] = tokenizer.encode(valid_text, add_special_tokens=add_special).ids
        return tokens

    def token_text(self, token: int, *, with_special: bool) -> bytes:
        """See `Vocabulary.token_text`; an id without a token gives no bytes, and no error."""
        if token in self._special and not with_special:
            return b""
        if token in self._added:
            return self._added[token]
        name = self.token_name(token)
        if self._bytes is not None:
            return bytes(self._bytes[letter] for letter in name if letter in self._bytes)
        if self._has_bytes and (byte := _BYTE.fullmatch(name)):
            return bytes.fromhex(byte[1])
        return name.replace(_SPACE, " ").encode()

    def token_name(self, token: int) -> str:
        """Return a token as the vocabulary writes it; empty if no token has this id."""
        return self._tokenizer.id_to_token(token) or ""


def _load_tokenizer(folder: HFFolder) -> Any:
    tokenizers = importlib.import_module("tokenizers")
    path = folder.path / TOKENIZER
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - the library raises nothing narrower
        raise LoadError(f"tokenizers cannot load {path}: {error}") from None
    # Truncation and padding settings in the file would cut or pad prompts.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _kinds(decoder: Any) -> Iterator[str]:
    if isinstance(decoder, dict):
        yield str(decoder.get("type"))
        for part in decoder.get("decoders") or ():
            yield from _kinds(part)


BERT_TOKENS: Final = 512
"""Number of positions in BERT, used as the limit if only a vocabulary is given."""
NO_LIMIT: Final = 1_000_000
"""A `model_max_length` of this or more means no limit: transformers writes 10**30."""
_ROBERTAS: Final = ("camembert", "mpnet")
_PADS: Final = ("[PAD]", "<pad>")


@dataclass(frozen=True, slots=True)
class EmbeddingTokenizer:
    """A loaded tokenizer of an embedding model, as `load_tokenizer` returns it. It adds the tokens that the model
    expects around a text."""

    tokenizer: Any
    max_tokens: int | None
    """Number of tokens at which a text is cut, added ones included; None: no limit."""
    pad_id: int
    """Id of the padding token; 0 if the vocabulary has none."""

    def encode(self, texts: Sequence[str]) -> list[Any]:
        """Return one `tokenizers.Encoding` for each text, in order, with the tokens that the model expects around a
        text and without padding. A text that is longer than `max_tokens` is cut, without an error."""
        encodings: list[Any] = self.tokenizer.encode_batch(texts)
        return encodings

    def decode(self, tokens: list[int]) -> str:
        """Return the text that tokens stand for, without special tokens. Raises RequestError with `param` `input` if
        there is no such token."""
        size = self.tokenizer.get_vocab_size()
        for token in tokens:
            if not 0 <= token < size:
                raise RequestError(f"There is no token {token}: the model has {size}.", param="input")
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=True)
        return text


def find_tokenizer(model: Path) -> Path:
    """Return the path of the tokenizer file beside a model file: the vocabulary that has the model's name
    (`<model>-vocab.txt`), else `tokenizer.json`, else the only vocabulary in the folder. Raises LoadError if there is
    none, or several."""
    folder = model.parent
    own_path = folder / f"{model.stem}-vocab.txt"
    for path in (own_path, folder / "tokenizer.json"):
        if path.is_file():
            return path
    vocabularies = sorted({*folder.glob("*-vocab.txt"), *folder.glob("vocab.txt")})
    if len(vocabularies) == 1:
        return vocabularies[0]
    if vocabularies:
        names = ", ".join(path.name for path in vocabularies)
        raise LoadError(f"several vocabularies lie beside {model} ({names}): name one with --tokenizer")
    raise LoadError(
        f"no tokenizer beside {model}: put its tokenizer.json or {own_path.name} there, or name one with --tokenizer"
    )


def count_positions(model: Path) -> int | None:
    """Return the number of tokens for which a model has positions, by the `config.json` beside it; None: not stated, or
    no such file. Raises LoadError if the file cannot be read or is not JSON.

    RoBERTa and models built like it start counting positions behind the id of the padding token; these are subtracted.
    """
    config = _config(model.with_name("config.json"))
    position_count, model_type = _whole(config.get("max_position_embeddings")), str(config.get("model_type"))
    if position_count is None or not ("roberta" in model_type or model_type in _ROBERTAS):
        return position_count
    return _whole(position_count - (_whole(config.get("pad_token_id")) or 0) - 1)


def load_tokenizer(path: Path, max_tokens: int | None, most: int | None = None) -> EmbeddingTokenizer:
    """Return the tokenizer in a file: a `tokenizer.json`, or a BERT vocabulary with one token on each line. Settings of
    a `tokenizer_config.json` beside it count too.

    Texts are cut at the first of these limits that is known: `max_tokens` (None: not given), the tokenizer's own,
    `most` (None: not known), and BERT_TOKENS for a BERT vocabulary; else not at all. All count tokens, those that the
    tokenizer adds included.

    Raises LoadError if a file cannot be used or the limit leaves no room for a text, ImportError without `tokenizers`.
    """
    check_file(path)
    tokenizers = importlib.import_module("tokenizers")
    config = _config(path.with_name("tokenizer_config.json"))
    if path.suffix == ".json":
        try:
            tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # noqa: BLE001 - the library raises nothing narrower
            raise LoadError(f"{path} is not a tokenizer.json: {error}") from None
        own_limit = (tokenizer.truncation or {}).get("max_length")
    else:
        tokenizer, own_limit = _word_piece(tokenizers, path, config), None
    limit = max_tokens or own_limit or _whole(config.get("model_max_length")) or most
    limit = limit or (None if path.suffix == ".json" else BERT_TOKENS)
    added_count = tokenizer.num_special_tokens_to_add(False)
    if limit is not None and limit <= added_count:
        raise LoadError(
            f"--max-tokens {limit} leaves no room for a text: the tokenizer puts {added_count} tokens around it"
        )
    pad_id = next((number for pad in _PADS if (number := tokenizer.token_to_id(pad)) is not None), 0)
    tokenizer.no_padding()
    if limit is None:
        tokenizer.no_truncation()
    else:
        tokenizer.enable_truncation(limit)
    return EmbeddingTokenizer(tokenizer, limit, pad_id)


def _word_piece(tokenizers: Any, path: Path, config: dict[str, Any]) -> Any:
    """Return BERT's tokenizer: it splits words into the longest pieces that the vocabulary knows."""
    try:
        # Not splitlines: it also splits at characters that some vocabularies contain.
        lines = path.read_bytes().decode().replace("\r\n", "\n").removesuffix("\n").split("\n")
    except UnicodeDecodeError:
        raise LoadError(f"{path} is not a vocabulary: it is not UTF-8 text with a token on each line") from None
    vocabulary = {token: number for number, token in enumerate(lines)}
    if missing_tokens := [token for token in ("[UNK]", "[CLS]", "[SEP]") if token not in vocabulary]:
        raise LoadError(f"{path} is not a BERT vocabulary: it has no {missing_tokens[0]}")
    is_lower = config.get("do_lower_case")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))  # noqa: S106
    tokenizer.add_special_tokens(
        [token for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if token in vocabulary]
    )
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
        strip_accents=config.get("strip_accents"),
        lowercase=is_lower_case(vocabulary) if is_lower is None else is_lower,
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = tokenizers.processors.BertProcessing(
        ("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"])
    )
    return tokenizer


def is_lower_case(tokens: Sequence[str] | dict[str, int]) -> bool:
    """Return whether a vocabulary is of lower-cased text: no token has a capital letter, except tokens that begin with
    `[` (special ones)."""
    return not any(token != token.lower() and not token.startswith("[") for token in tokens)


def _config(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise LoadError(f"{path} cannot be read: {error}") from None
    return content if isinstance(content, dict) else {}


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and 0 < value < NO_LIMIT else None
