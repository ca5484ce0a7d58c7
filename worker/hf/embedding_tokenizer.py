"""The tokenizer of an embedding model: a `tokenizer.json`, or BERT's WordPiece over a vocabulary in a text file."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from worker.errors import LoadError, RequestError
from worker.preflight import check_file

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
