"""Patterns of names, in which `*` stands for any text. Pure."""

from __future__ import annotations

from collections.abc import Iterable


class NamePatterns:
    """Patterns that a name may match, in which `*` stands for any text, also none; without patterns, no name matches.
    Immutable. Matching is case-sensitive and takes linear time: a regular expression with many stars could take
    exponential time."""

    __slots__ = ("_patterns",)

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = tuple(tuple(pattern.split("*")) for pattern in patterns)

    def matches(self, name: str) -> bool:
        """Return whether one of the patterns matches the whole name. Matching is case-sensitive, and `*` in a pattern
        stands for any text."""
        return any(_matches(pieces, name) for pieces in self._patterns)


def _matches(pieces: tuple[str, ...], name: str) -> bool:
    """Return whether the name consists of the pieces with any text between them."""
    first_piece, *inner_pieces = pieces
    if not inner_pieces:
        return name == first_piece
    last_piece = inner_pieces.pop()
    if not name.startswith(first_piece) or not name.endswith(last_piece):
        return False
    position, end = len(first_piece), len(name) - len(last_piece)
    for piece in inner_pieces:
        index = name.find(piece, position, end)
        if index < 0:
            return False
        position = index + len(piece)
    return position <= end
