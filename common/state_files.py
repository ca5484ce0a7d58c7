"""Files that one program writes and another must judge: their names and versions."""

from __future__ import annotations

from typing import Final

RESPONSES_NAME: Final = "responses.db"
RESPONSES_SCHEMA_VERSION: Final = 2
"""Its `user_version`. Raised when an older gateway would misread what is written."""
