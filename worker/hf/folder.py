"""A model's folder in Hugging Face's layout: what its JSON files and templates say about texts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from worker.errors import LoadError
from worker.preflight import check_file

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
