"""Names and schema versions of files that the gateway writes and the controller's commands check."""

from __future__ import annotations

from typing import Final

RESPONSES_NAME: Final = "responses.db"
RESPONSES_SCHEMA_VERSION: Final = 2
"""`user_version` of that SQLite file. Raise it when an older gateway would misread the file."""
