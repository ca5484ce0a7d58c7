"""Reading a token that programs share, for those that show it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_TOKEN: Final = re.compile(r"[!-~]{16,512}", re.ASCII)


def read_token(path: Path) -> str | None:
    """Read the token in a file, without the white space around it. None: the file is missing, cannot be read, or does
    not hold 16 to 512 printable ASCII characters without a space. Never raises. Blocks for the time of the read."""
    try:
        text = path.read_text("ascii").strip()
    except (OSError, ValueError):
        return None
    return text if _TOKEN.fullmatch(text) else None
