"""The token by which a controller that listens on a port knows its gateways and its command line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

GATEWAY_HEADER: Final = "x-roundhouse-gateway-token"
"""Header of requests to the controller that holds the token. A gateway passes none of its clients' on."""
FILE_VARIABLE: Final = "ROUNDHOUSE_GATEWAY_TOKEN_FILE"
"""Names the file that holds the token, for the controller, for gateways and for the command line."""
_TOKEN: Final = re.compile(r"[!-~]{16,512}", re.ASCII)


def read_token(path: Path) -> str | None:
    """The token in a file; None: there is none that counts (no file, one that cannot be read, or less than 16 printable
    characters)."""
    try:
        text = path.read_text("ascii").strip()
    except (OSError, ValueError):
        return None
    return text if _TOKEN.fullmatch(text) else None
