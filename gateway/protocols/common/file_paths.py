"""Removes absolute paths from the reason why a model is not loaded: where files lie on the server is for
administrators. Pure.

Hidden are paths from the root (`/srv/models/m.gguf`) and from a home folder (`~/m.gguf`, `~bob/m.gguf`). A quoted path
ends at the closing quote. Any other ends at a space, unless the next word has a slash inside (`/srv/my models/m`).
Relative paths stay, and so do paths of our own APIs (`/v1/models`), which have the same form.
"""

from __future__ import annotations

import re
from typing import Final

HIDDEN_PATH: Final = "[path]"
"""Replaces each path."""

_OWN_ROUTE: Final = r"(?:v[12]|health)(?![\w.-])"
_ROOT: Final = rf"(?:~[\w.-]{{0,64}})?(?:\\?/)+(?!{_OWN_ROUTE})"
"""Start of a path. Slashes may be escaped, as in JSON."""
_START: Final = r"(?:(?<![\w.\\/~])|(?<=\\[bfnrt])|(?<=\\u[0-9A-Fa-f]{4})|(?<=\s-[A-Za-z]))"
"""Position where a path may start: not within a relative path or a fraction, but after a character escaped for JSON and
after the letter of a command-line option."""
_END: Final = r"\s\"'`<>|\[\]{}"
_WORD: Final = rf"[^{_END}/\\]"
_QUOTED: Final = re.compile(rf"(?P<mark>[\"'`]){_ROOT}(?![\s/])[^\"'`\n]*(?P=mark)")
_BARE: Final = re.compile(rf"{_START}(?<!<){_ROOT}{_WORD}[^{_END}]*(?:(?<![,;:)])[ ]\w[\w.-]*/[^{_END}]+)*")
_IN_ANGLES: Final = re.compile(rf"(?<=<){_ROOT}{_WORD}+/[^{_END}]+")
"""A path in angle brackets. It must have two parts, because one part alone is a closing tag: `</s>`."""
_AFTER: Final = ".,:;!?)\\"
"""Characters at the end of a path that belong to the sentence or quotation around it."""


def hide_paths(text: str) -> str:
    """Return the text with each absolute path, and each path from a home folder (`~/...`), replaced by `HIDDEN_PATH`
    (`[path]`). Relative paths and the gateway's own routes (`/v1/...`, `/v2/...`, `/health`) stay."""
    text = _QUOTED.sub(rf"\g<mark>{HIDDEN_PATH}\g<mark>", text)
    for pattern in (_IN_ANGLES, _BARE):
        text = pattern.sub(_hide_path, text)
    return text


def _hide_path(match: re.Match[str]) -> str:
    return HIDDEN_PATH + match[0][len(match[0].rstrip(_AFTER)) :]
