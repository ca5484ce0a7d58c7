"""HTML as the standard library's parser can read it. Pure."""

from __future__ import annotations

import re
from typing import Final

_CONDITION: Final = re.compile(r"<!\[(?:CDATA\[|(?:if|else|endif)\b[^\]>]{0,200}\]>)|\]\]>", re.IGNORECASE)
"""Marks of Word's conditions and of XML's sections, which are left out."""


def mend_markup(markup: str) -> str:
    """Return HTML without what makes `html.parser.HTMLParser` raise AssertionError, or search to the end of the text
    again and again: declarations within brackets, comments that never end, and tags that never end. Word's conditions
    and the marks of CDATA sections are left out, other brackets become text."""
    markup = _CONDITION.sub("", markup).replace("<![", "&lt;![")
    unended = markup.find("<!--", markup.rfind("-->") + 1)
    if unended >= 0:
        markup = markup[:unended]
    tail = markup.rfind(">") + 1
    return markup[:tail] + markup[tail:].replace("<", "&lt;")
