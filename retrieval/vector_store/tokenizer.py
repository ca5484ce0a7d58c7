"""How the words of a collection are made and weighed. Pure, and without Qdrant's code, which only `bm25` loads.

Words of scripts that put spaces between them are runs of letters, digits and combining marks. Of other scripts nothing
says where a word ends, so their texts are runs of characters, of which each two neighbours count as a word.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, pairwise
from typing import Any, Final, NamedTuple

from contract.documents import ANY_LANGUAGE, LANGUAGES, NO_LANGUAGE

TOKENIZER_VERSION: Final = 2
"""Raised by each change of the words that are made of a text or a query: collections of other versions are then made
anew. 1 is Qdrant's own tokenizer, of which a collection has one language."""


@dataclass(frozen=True, slots=True)
class Bm25Options:
    """How the words of texts and queries are made, and weighed. A collection keeps those that it was created with.
    Raises ValueError for an unknown language or version, and for numbers out of their ranges."""

    language: str = ANY_LANGUAGE
    """Of stop words and stems, one of `LANGUAGES`; `none`: there are neither."""
    k: float = 1.2
    """How much further occurrences of a word in a text count, from 0: nothing."""
    b: float = 0.75
    """How much the length of a text counts, from 0 to 1."""
    average_length: float = 256.0
    """Words of a text of average length, above 0. A fixed number: no store counts it."""
    version: int = TOKENIZER_VERSION

    def __post_init__(self) -> None:
        if self.language not in LANGUAGES or (self.version == 1 and self.language == ANY_LANGUAGE):
            raise ValueError(f"unknown language of words {self.language!r:.80}")
        if self.version not in (1, TOKENIZER_VERSION):
            raise ValueError(f"words of the version {self.version!r:.20}, and known are 1 and {TOKENIZER_VERSION}")
        if not (self.k >= 0 and 0 <= self.b <= 1 and self.average_length > 0):
            raise ValueError(f"numbers of BM25 are out of their ranges: {asdict(self)}")


def dump_options(options: Bm25Options) -> dict[str, Any]:
    """Return the options as a dictionary by field name, which JSON can hold; `load_options` reads it."""
    return asdict(options)


def load_options(value: Mapping[str, Any] | None) -> Bm25Options:
    """Return the options that `dump_options` returned, also those of before there were versions; None: the collection
    is older than the options, which were English then. Raises TypeError or ValueError for anything else."""
    return Bm25Options(**{"language": "english", "version": 1, **(value or {})})


_LANGUAGES_OF: Final[Mapping[str, Sequence[str]]] = {
    "latin": (
        "english",
        "german",
        "french",
        "spanish",
        "italian",
        "portuguese",
        "dutch",
        "swedish",
        "danish",
        "norwegian",
        "finnish",
        "hungarian",
        "romanian",
        "turkish",
        "catalan",
        "indonesian",
        "slovene",
        "basque",
        "azerbaijani",
    ),
    "cyrillic": ("russian", "kazakh", "tajik"),
    "greek": ("greek",),
    "arabic": ("arabic",),
    "hebrew": ("hebrew",),
    "bengali": ("bengali",),
}
_SCRIPT_OF: Final = {"hinglish": "latin"} | {each: script for script, found in _LANGUAGES_OF.items() for each in found}
_LETTERS: Final[Mapping[str, frozenset[str]]] = {
    language: frozenset(letters)
    for language, letters in (
        ("german", "äöü"),
        ("french", "àâçèéêëîïôùûœæ"),
        ("spanish", "áéíñóúü"),
        ("italian", "àèéìòù"),
        ("portuguese", "áâãàçéêíóôõú"),
        ("swedish", "äåöé"),
        ("danish", "æøåé"),
        ("norwegian", "æøåé"),
        ("finnish", "äö"),
        ("hungarian", "áéíóöőúüű"),
        ("romanian", "ăâîșşțţ"),
        ("turkish", "çğıöşü"),
        ("catalan", "àçèéíïòóúü"),
        ("slovene", "čšž"),
        ("azerbaijani", "çəğıöşü"),
    )
}
"""Those of a language's alphabet that are not in ASCII."""
_SCRIPT_ENDS: Final = (
    (0x370, ""),
    (0x400, "greek"),
    (0x530, "cyrillic"),
    (0x590, ""),
    (0x600, "hebrew"),
    (0x700, "arabic"),
    (0x750, ""),
    (0x780, "arabic"),
    (0x8A0, ""),
    (0x900, "arabic"),
    (0x980, ""),
    (0xA00, "bengali"),
    (0x1E00, ""),
    (0x1F00, "latin"),
    (0x2000, "greek"),
)


def list_languages(language: str) -> dict[str, Sequence[str]]:
    """Return the languages that a word may be of, by script, the likeliest first. `language`: that of the options, the
    only one of its script; texts of other scripts have their own. Empty for `none`."""
    if language == NO_LANGUAGE:
        return {}
    found = dict(_LANGUAGES_OF)
    if (script := _SCRIPT_OF.get(language)) is not None:
        found[script] = (language,)
    return found


def find_script(word: str) -> str:
    """Return the script of a word by its first character, as `list_languages` names it. Empty: one of whose languages
    nothing is known, or a number."""
    if word[0] < "\u02b0":
        return "latin" if word[0] > "9" else ""
    first = ord(word[0])
    return next((script for end, script in _SCRIPT_ENDS if first < end), "")


def list_languages_by_letters(word: str) -> list[str]:
    """Return the languages whose alphabets have all letters of a word that are not in ASCII; none, if all are."""
    letters = {char for char in word if char > "\x7f"}
    return [language for language, known in _LETTERS.items() if letters <= known] if letters else []


def _write_ranges(codes: Iterable[int]) -> str:
    """Return characters for a class of a regular expression, as ranges: one by one, those beyond U+FFFF are slow."""
    ranges: list[list[int]] = []
    for code in sorted(codes):
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)


_MARKED: Final = (
    range(0x300, 0x3100),
    range(0xA600, 0xAC00),
    range(0xFB1E, 0xFB1F),
    range(0xFE20, 0xFE30),
    range(0x10A00, 0x12000),
    range(0x16AF0, 0x17000),
    range(0x1E000, 0x1E960),
)
"""Where the combining marks are: to look at all of Unicode would take 0.2 s."""
_MARKS: Final = _write_ranges(
    code for code in chain.from_iterable(_MARKED) if unicodedata.category(chr(code)).startswith("M")
)
_HIDDEN: Final = (
    # What shows nothing, or only stretches or frames a word; and marks of owners, which would become letters.
    (0xAD, 0x34F, 0x61C, 0x640, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x20E3, 0x2120, 0x2122, 0x3164, 0xFEFF, 0xFFA0),
    range(0x180B, 0x1810),
    range(0x200B, 0x2010),
    range(0x202A, 0x202F),
    range(0x2060, 0x2070),
    range(0xFE00, 0xFE10),
    range(0xE0000, 0xE0200),
)
_DIGITS: Final = (range(0x660, 0x1C60), range(0xA620, 0xAC00), range(0x11000, 0x12000))
_CHANGED: Final[Mapping[str, str]] = {chr(code): "" for code in chain.from_iterable(_HIDDEN)} | {
    char: str(unicodedata.decimal(char)) for char in map(chr, chain.from_iterable(_DIGITS)) if char.isdecimal()
}
"""What stands for a character before anything else: digits of all scripts are equal."""
_CHANGE: Final = re.compile(f"[{_write_ranges(map(ord, _CHANGED))}]")
_UNSPACED: Final = (
    # Thai, Lao, Burmese, Hangul, Khmer, Tai scripts, Javanese; kana, bopomofo and all that is written with them.
    "\u0e01-\u0e5b\u0e81-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17dc\u1950-\u19df\u1a20-\u1aad\ua980-\ua9ff"
    "\uaa60-\uaadf\uac00-\ud7ff\u3005-\u3007\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3105-\u312f"
    "\u31a0-\u31ff\u3400-\u4dbf\u4e00-\ua4cf\ua960-\ua97f\uf900-\ufaff\U00016fe0-\U00018cff\U0001b000-\U0001b2ff"
    "\U00020000-\U0003ffff"
)
_ASCII_WORD: Final = re.compile("[0-9a-z]+")
_WORD: Final = re.compile(rf"[^\W_{_UNSPACED}]+(?:[{_MARKS}]+[^\W_{_UNSPACED}]*)*")
_UNSPACED_LETTER: Final = rf"[{_UNSPACED}](?<=\w)[{_MARKS}]*"
_CHARACTER: Final = re.compile(_UNSPACED_LETTER)
_RUN: Final = re.compile(rf"{_UNSPACED_LETTER}(?:{_UNSPACED_LETTER})*")


class SplitText(NamedTuple):
    """A text's words, and its runs of characters of scripts without spaces, each character with its marks. All in the
    order of the text, equal for all ways to write the same letters."""

    words: list[str]
    runs: list[list[str]]


def split_text(text: str) -> SplitText:
    """Return the words and runs of a text; both are empty where it has neither letters nor digits. Raises nothing, for
    lone surrogates neither."""
    if text.isascii():
        return SplitText(_ASCII_WORD.findall(text.lower()), [])
    text = unicodedata.normalize("NFKC", _CHANGE.sub(lambda found: _CHANGED[found[0]], text))
    # Capitals of one letter may become several, which a normal form joins again; the Turkish one keeps its dot.
    text = unicodedata.normalize("NFKC", text.casefold()).replace("i\u0307", "i")
    return SplitText(_WORD.findall(text), [_CHARACTER.findall(run) for run in _RUN.findall(text)])


def has_words(text: str) -> bool:
    """Return whether a search by words can find anything by a text: it has a letter or a digit."""
    return any(split_text(text))


def list_grams(run: Sequence[str]) -> list[str]:
    """Return each two neighbours of a run of `split_text`; of a run of one character that one."""
    return [one + other for one, other in pairwise(run)] or list(run)


_PLAIN: Final = str.maketrans(
    {"ø": "o", "ł": "l", "đ": "d", "ð": "d", "ħ": "h", "\u0131": "i", "æ": "ae", "œ": "oe", "þ": "th"}
    # Arabic letters that Persian and Urdu write otherwise, or that few people tell apart.
    | {"ك": "ک", "ي": "ی", "ى": "ی", "ة": "\u0647"}
)
_SPELLED: Final = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ø": "oe", "å": "aa"})
_NUKTA: Final = 7
_POINTS: Final = range(10, 36)
_ACCENTS_FROM: Final = 200
_PREFIXES: Final = re.compile("[\u05d5\u05d4\u05d1\u05db\u05dc\u05de\u05e9](?=.{3})|[\u0648\u0641](?=\u0627\u0644)")
"""Hebrew and Arabic write short words such as "and" or "the" together with the next one; these are those that no
stemmer takes off."""


def list_loose_forms(word: str) -> list[str]:
    """Return other forms that somebody may write in place of a word: without accents and points (`koln` of `köln`),
    with two letters for one (`koeln`), without prefixes. The word itself is not among them."""
    if word.isascii():
        return []
    plain = "".join(char for char in unicodedata.normalize("NFKD", word) if not _is_accent(char))
    forms = [unicodedata.normalize("NFKC", plain.translate(_PLAIN)), word.translate(_SPELLED)]
    rest = forms[0]
    for _ in range(2):
        if (found := _PREFIXES.match(rest)) is None:
            break
        rest = rest[found.end() :]
        forms.append(rest)
    return [each for each in dict.fromkeys(forms) if each and each != word]


def _is_accent(char: str) -> bool:
    kind = unicodedata.combining(char)
    return kind == _NUKTA or kind in _POINTS or kind >= _ACCENTS_FROM
