"""Languages whose stop words and stems searches by words know: those of Qdrant's BM25."""

from __future__ import annotations

from typing import Final, Literal, get_args

SearchLanguage = Literal[
    "none",
    "arabic",
    "azerbaijani",
    "basque",
    "bengali",
    "catalan",
    "chinese",
    "danish",
    "dutch",
    "english",
    "finnish",
    "french",
    "german",
    "greek",
    "hebrew",
    "hinglish",
    "hungarian",
    "indonesian",
    "italian",
    "japanese",
    "kazakh",
    "nepali",
    "norwegian",
    "portuguese",
    "romanian",
    "russian",
    "slovene",
    "spanish",
    "swedish",
    "tajik",
    "turkish",
]
LANGUAGES: Final[tuple[str, ...]] = get_args(SearchLanguage)
NO_LANGUAGE: Final = "none"
"""No stop words and no stems."""
