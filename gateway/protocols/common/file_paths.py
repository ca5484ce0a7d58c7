"""Takes absolute paths out of why a model is not loaded: where its files lie on the server is for those who may
administer it. Pure.

Hidden are paths from the root (`/srv/models/m.gguf`) and from a home folder (`~/m.gguf`, `~bob/m.gguf`): in quotation
marks up to the closing one, else up to a space, and over a space to a word with a slash inside (`/srv/my models/m`).
Relative paths stay, and so do paths of our own APIs (`/v1/models`), which have the same form.
"""

from __future__ import annotations

import re
from typing import Final

HIDDEN_PATH: Final = "[path]"
"""Stands where a path was."""

_OWN_ROUTE: Final = r"(?:v[12]|health)(?![\w.-])"
_ROOT: Final = rf"(?:~[\w.-]{{0,64}})?(?:\\?/)+(?!{_OWN_ROUTE})"
"""Slashes may be escaped, as in JSON."""
_START: Final = r"(?:(?<![\w.\\/~])|(?<=\\[bfnrt])|(?<=\\u[0-9A-Fa-f]{4})|(?<=\s-[A-Za-z]))"
"""Not within a relative path, and not a fraction; after a character that JSON has escaped; after an option's letter."""
_END: Final = r"\s\"'`<>|\[\]{}"
_WORD: Final = rf"[^{_END}/\\]"
_QUOTED: Final = re.compile(rf"(?P<mark>[\"'`]){_ROOT}(?![\s/])[^\"'`\n]*(?P=mark)")
_BARE: Final = re.compile(rf"{_START}(?<!<){_ROOT}{_WORD}[^{_END}]*(?:(?<![,;:)])[ ]\w[\w.-]*/[^{_END}]+)*")
_IN_ANGLES: Final = re.compile(rf"(?<=<){_ROOT}{_WORD}+/[^{_END}]+")
"""One part alone is a closing tag: `</s>`."""
_AFTER: Final = ".,:;!?)\\"
"""Ends a sentence, or belongs to what stands around the path."""


def hide_paths(text: str) -> str:
    """The text with `HIDDEN_PATH` in each path's place."""
    text = _QUOTED.sub(rf"\g<mark>{HIDDEN_PATH}\g<mark>", text)
    for pattern in (_IN_ANGLES, _BARE):
        text = pattern.sub(_hide_path, text)
    return text


def _hide_path(match: re.Match[str]) -> str:
    return HIDDEN_PATH + match[0][len(match[0].rstrip(_AFTER)) :]
