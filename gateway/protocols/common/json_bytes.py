"""Values as compact JSON. Pure."""

from __future__ import annotations

import json
from typing import Any

import orjson


def json_bytes(value: Any) -> bytes:
    """UTF-8; ASCII where a string holds half a surrogate pair, which only that can write.

    Raises:
        RecursionError: it is nested too deeply.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        # Also integers of more than 64 bits, and more than 254 levels.
        return json.dumps(value, separators=(",", ":")).encode()
