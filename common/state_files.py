"""Names and schema versions of files that the gateway and retrieval write and the controller's commands check."""

from __future__ import annotations

from typing import Final

RESPONSES_NAME: Final = "responses.db"
RESPONSES_SCHEMA_VERSION: Final = 4
"""`user_version` of that SQLite file, and the only one that is read. Raise it when an older gateway would misread the
file."""

RETRIEVAL_FOLDER: Final = "retrieval"
"""Folder in retrieval's state folder with all of the names below."""
CATALOG_NAME: Final = "catalog.db"
CATALOG_SCHEMA_VERSION: Final = 2
"""`user_version` of that SQLite file, and the only one that is read. Raise it when an older retrieval program would
misread the file."""
ORIGINALS_FOLDER: Final = "originals"
"""Folder with the files that clients sent, each as `<first two digits of its SHA-256>/<its SHA-256>`. Who holds a
shared `flock` of this folder keeps retrieval from removing any of them."""
RESTORED_NAME: Final = "restored"
"""Empty file that a restore leaves beside the catalog: what the vector store holds is of another catalog. Retrieval
removes the file when it has emptied the vector store."""
