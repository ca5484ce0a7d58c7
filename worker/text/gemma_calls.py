"""Parses Gemma 4's tool calls: `call:name{key:<|"|>text<|"|>,other:[1,{deep:true}]}`. Pure."""

from __future__ import annotations

import json
import re
from typing import Any, Final

QUOTE: Final = '<|"|>'
_HEAD: Final = re.compile(r"call:([^{\s]+)(?=\{)")
_KEY: Final = re.compile(r"\s*([^:{}\[\],]+?)\s*:")
_BARE: Final = re.compile(r"[^,{}\[\]]+")
_SPACE: Final = re.compile(r"\s*")
DEPTH: Final = 64
"""Maximum nesting that is read."""


def gemma_call(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the arguments of a call in Gemma 4's markup, which must be the whole text, without blanks in
    front. A value without quotes is read as JSON, else as text. Raises ValueError if the text is no such call, or is
    nested deeper than DEPTH."""
    head = _HEAD.match(text)
    if head is None:
        raise ValueError("no `call:name{`")
    reader = _ValueReader(text, head.end())
    arguments = reader.read_value()
    reader.check_end()
    return head[1], arguments


class _ValueReader:
    """Reads values of a text from a position on."""

    def __init__(self, text: str, position: int) -> None:
        self._text = text
        self._at = position
        self._depth = 0

    def read_value(self) -> Any:
        self._skip_space()
        if self._take_mark(QUOTE):
            return self._read_quoted()
        if self._take_mark("{"):
            return self._read_nested("}", {}, self._read_member)
        if self._take_mark("["):
            return self._read_nested("]", [], lambda items: items.append(self.read_value()))
        match = _BARE.match(self._text, self._at)
        if match is None:
            raise ValueError(f"no value at {self._at}")
        self._at = match.end()
        try:
            return json.loads(match[0], parse_constant=str)
        except ValueError:
            return match[0].strip()

    def check_end(self) -> None:
        self._skip_space()
        if self._at != len(self._text):
            raise ValueError(f"more at {self._at}")

    def _read_nested(self, closing_mark: str, container: Any, read_member: Any) -> Any:
        self._depth += 1
        if self._depth > DEPTH:
            raise ValueError("too deep")
        self._skip_space()
        if not self._take_mark(closing_mark):
            read_member(container)
            while self._has_more(closing_mark):
                read_member(container)
        self._depth -= 1
        return container

    def _has_more(self, closing_mark: str) -> bool:
        self._skip_space()
        if self._take_mark(closing_mark):
            return False
        if not self._take_mark(","):
            raise ValueError(f"no `,` or `{closing_mark}` at {self._at}")
        return True

    def _read_member(self, members: dict[str, Any]) -> None:
        self._skip_space()
        if self._take_mark(QUOTE):
            key = self._read_quoted()
            self._skip_space()
            if not self._take_mark(":"):
                raise ValueError(f"no `:` at {self._at}")
        else:
            match = _KEY.match(self._text, self._at)
            if match is None:
                raise ValueError(f"no key at {self._at}")
            key, self._at = match[1], match.end()
        members[key] = self.read_value()

    def _read_quoted(self) -> str:
        end = self._text.find(QUOTE, self._at)
        if end < 0:
            raise ValueError("a text is not closed")
        text, self._at = self._text[self._at : end], end + len(QUOTE)
        return text

    def _take_mark(self, mark: str) -> bool:
        if not self._text.startswith(mark, self._at):
            return False
        self._at += len(mark)
        return True

    def _skip_space(self) -> None:
        space = _SPACE.match(self._text, self._at)
        self._at = space.end() if space else self._at
