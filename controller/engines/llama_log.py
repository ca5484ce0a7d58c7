"""What llama.cpp's log tells of a load. Pure."""

from __future__ import annotations

import re
from typing import Final

_DOTS: Final = re.compile(r"^\.+$", re.MULTILINE)
_DOTS_AT_MOST: Final = 100


def dots_progress(log_tail: str) -> float | None:
    """0 to 1 by the line of dots that llama.cpp writes while it reads a file, one for each percent, at most.

    A large tensor is one dot though it is several percent, so it may be further. llama.cpp's own server writes no dots
    any more (seen in 0.5.0): it keeps its progress for its router.
    """
    lines = list(_DOTS.finditer(log_tail))
    if not lines:
        return None
    if log_tail[lines[-1].end() :].strip():
        return 1.0
    return min(1.0, len(lines[-1][0]) / _DOTS_AT_MOST)
