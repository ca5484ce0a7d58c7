"""Names of files as HTTP carries them: what a client calls a file, and what a download is called. Pure.

A name ends up in a file dialog and in a folder of somebody, so it has no path, and nothing that is not seen: control
characters, or marks that turn the direction of text and make `exe.txt` of `txt.exe`.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final
from urllib.parse import quote

MOST_NAME_BYTES: Final = 240
"""Bytes of a name in UTF-8; file systems take 255."""
_LONGEST_SUFFIX: Final = 20
_UNSEEN: Final = frozenset({"Cc", "Cf", "Co", "Cs", "Zl", "Zp"})
_JOINERS: Final = "\u200c\u200d"
"""Unseen as well, but parts of words and emoji."""
_PLAIN: Final = re.compile(r"[A-Za-z0-9 !#$&'()+,.;=@\[\]^_`{}~-]+", re.ASCII)
"""A name that stands between quotation marks as it is, in the eyes of every client."""


def clean_file_name(text: str) -> str | None:
    """Return the last part of a path without unseen characters, of at most `MOST_NAME_BYTES` bytes; None: nothing is
    left that can be a name. Both `/` and `\\` part a path. The end with the last dot stays if the name is cut."""
    last = re.split(r"[/\\]", text)[-1]
    seen = "".join(each for each in last if each in _JOINERS or unicodedata.category(each) not in _UNSEEN)
    name = seen.strip(" ").rstrip(". ")
    stem, dot, suffix = name.rpartition(".")
    if not stem or len(suffix) > _LONGEST_SUFFIX:
        stem, dot, suffix = name, "", ""
    end = f"{dot}{suffix}".encode()
    cut = stem.encode()[: MOST_NAME_BYTES - len(end)].decode(errors="ignore")
    return f"{cut}{dot}{suffix}" if cut.strip(f"{_JOINERS} .") else None


def build_disposition(name: str, default: str) -> str:
    """Return the header `Content-Disposition` of a download (RFC 6266): `name` as `clean_file_name` leaves it, else
    `default`, which must be ASCII. A name that is not plain ASCII comes in both forms, for old clients with `_` in the
    place of what they cannot read."""
    cleaned = clean_file_name(name) or default
    if _PLAIN.fullmatch(cleaned):
        return f'attachment; filename="{cleaned}"'
    plain = "".join(each if _PLAIN.fullmatch(each) else "_" for each in cleaned)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(cleaned, safe='')}"
