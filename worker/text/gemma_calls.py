"""Gemma 4's calls of tools: `call:name{key:<|"|>text<|"|>,other:[1,{deep:true}]}`. Pure."""

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
"""Deepest nesting that is read."""


def gemma_call(text: str) -> tuple[str, dict[str, Any]]:
    """Name and arguments. Raises ValueError: it is no call."""
    head = _HEAD.match(text)
    if head is None:
        raise ValueError("no `call:name{`")
    reader = _Reader(text, head.end())
    arguments = reader.value()
    reader.end()
    return head[1], arguments


class _Reader:
    """Reads values from a place in a text on."""

    def __init__(self, text: str, at: int) -> None:
        self._text = text
        self._at = at
        self._depth = 0

    def value(self) -> Any:
        self._skip()
        if self._takes(QUOTE):
            return self._quoted()
        if self._takes("{"):
            return self._nested("}", {}, self._member)
        if self._takes("["):
            return self._nested("]", [], lambda made: made.append(self.value()))
        bare = _BARE.match(self._text, self._at)
        if bare is None:
            raise ValueError(f"no value at {self._at}")
        self._at = bare.end()
        try:
            return json.loads(bare[0], parse_constant=str)
        except ValueError:
            return bare[0].strip()

    def end(self) -> None:
        self._skip()
        if self._at != len(self._text):
            raise ValueError(f"more at {self._at}")

    def _nested(self, close: str, made: Any, take: Any) -> Any:
        self._depth += 1
        if self._depth > DEPTH:
            raise ValueError("too deep")
        self._skip()
        if not self._takes(close):
            take(made)
            while self._more(close):
                take(made)
        self._depth -= 1
        return made

    def _more(self, close: str) -> bool:
        self._skip()
        if self._takes(close):
            return False
        if not self._takes(","):
            raise ValueError(f"no `,` or `{close}` at {self._at}")
        return True

    def _member(self, made: dict[str, Any]) -> None:
        self._skip()
        if self._takes(QUOTE):
            key = self._quoted()
            self._skip()
            if not self._takes(":"):
                raise ValueError(f"no `:` at {self._at}")
        else:
            named = _KEY.match(self._text, self._at)
            if named is None:
                raise ValueError(f"no key at {self._at}")
            key, self._at = named[1], named.end()
        made[key] = self.value()

    def _quoted(self) -> str:
        end = self._text.find(QUOTE, self._at)
        if end < 0:
            raise ValueError("a text is not closed")
        text, self._at = self._text[self._at : end], end + len(QUOTE)
        return text

    def _takes(self, mark: str) -> bool:
        if not self._text.startswith(mark, self._at):
            return False
        self._at += len(mark)
        return True

    def _skip(self) -> None:
        space = _SPACE.match(self._text, self._at)
        self._at = space.end() if space else self._at
