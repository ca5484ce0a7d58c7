"""The token that gateways and the command line show to a controller that listens on a port."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

GATEWAY_HEADER: Final = "x-roundhouse-gateway-token"
"""Header with the token in requests to the controller. A gateway never forwards its clients' header of that name."""
FILE_VARIABLE: Final = "ROUNDHOUSE_GATEWAY_TOKEN_FILE"
"""Environment variable with the path of the token's file, for the controller, gateways and the command line."""
_TOKEN: Final = re.compile(r"[!-~]{16,512}", re.ASCII)


def read_token(path: Path) -> str | None:
    """Read the token in a file, without the white space around it. None: the file is missing, cannot be read, or does
    not hold 16 to 512 printable ASCII characters without a space. Never raises. Blocks for the time of the read."""
    try:
        text = path.read_text("ascii").strip()
    except (OSError, ValueError):
        return None
    return text if _TOKEN.fullmatch(text) else None
