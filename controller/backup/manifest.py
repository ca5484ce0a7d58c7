"""What an archive says of itself, and which of its members are believed. Pure.

Members are `FOLDER/FILE` of names that are listed here, so no name in an archive leads anywhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from common.state_files import RESPONSES_NAME, RESPONSES_SCHEMA_VERSION
from controller.config.last_good import FILE_NAME as LAST_GOOD_NAME
from controller.config.read import is_read
from controller.schema.status import SCHEMA_VERSION as STATE_SCHEMA_VERSION
from controller.storage.state_dir import IDENTITY_NAME, MEMORY_NAME, OBSERVED_MEMORY_NAME

MANIFEST_NAME: Final = "manifest.json"
FORMAT: Final = "roundhouse-backup"
SCHEMA_VERSION: Final = 1
"""Of the archive. Raised when an earlier Roundhouse would restore it wrongly."""
STATE_FOLDER: Final = "state"
RESPONSES_FOLDER: Final = "responses"
DESIRED_FOLDER: Final = "desired-state"
IDENTITY: Final = IDENTITY_NAME
STATE_FILES: Final = (IDENTITY, MEMORY_NAME, LAST_GOOD_NAME, OBSERVED_MEMORY_NAME)
JOURNAL: Final = "journal.db"
RESPONSES: Final = RESPONSES_NAME


class BackupError(Exception):
    """A backup cannot be made, or not be restored. The message is for the operator."""


class ForeignArchiveError(BackupError):
    """The file is no backup that Roundhouse has written."""


class DamagedArchiveError(BackupError):
    """The archive is cut off, or a file in it differs from what its manifest says."""


class NewerArchiveError(BackupError):
    """A newer version of Roundhouse wrote the archive, in a form that this version does not read."""


class Member(BaseModel):
    """What the manifest says of one file of the archive: its size in bytes, its SHA-256 in hexadecimal digits."""

    model_config = ConfigDict(frozen=True, strict=True)

    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Manifest(BaseModel):
    """The content of `manifest.json`, the first file of an archive: who wrote it, when, and which files follow."""

    model_config = ConfigDict(frozen=True, strict=True)

    format: Literal["roundhouse-backup"] = FORMAT
    schema_version: int = SCHEMA_VERSION
    state_schema_version: int = STATE_SCHEMA_VERSION
    """Of the JSON files and the journal."""
    responses_schema_version: int = RESPONSES_SCHEMA_VERSION
    """Of `responses.db`."""
    version: str
    """Which Roundhouse wrote it."""
    made_at: float
    """Unix time."""
    instance: str
    members: dict[str, Member]


@dataclass(frozen=True, slots=True)
class MemberPlace:
    """To which folder of an installation a file of the archive belongs, and its name there."""

    folder: str
    """`state`, `responses` or `desired-state`."""
    name: str
    """A file directly in it."""

    @property
    def member(self) -> str:
        """The name of the file in an archive, such as `state/memory.json`."""
        return f"{self.folder}/{self.name}"

    @property
    def is_database(self) -> bool:
        """Whether it is an SQLite file."""
        return self.name in (JOURNAL, RESPONSES) and self.folder != DESIRED_FOLDER


def parse_member(member: str) -> MemberPlace:
    """Where a member belongs. Raises ForeignArchiveError: no backup holds such a member."""
    folder, _, name = member.partition("/")
    is_known = (
        (folder == STATE_FOLDER and name in (*STATE_FILES, JOURNAL))
        or (folder == RESPONSES_FOLDER and name == RESPONSES)
        or (folder == DESIRED_FOLDER and is_read(name) and not set(name) & {"/", "\0"})
    )
    if not is_known:
        raise ForeignArchiveError(f"it holds {member!r}, which no backup holds")
    return MemberPlace(folder, name)


def parse_manifest(content: Mapping[str, object]) -> Manifest:
    """The manifest of an archive that this version can restore.

    Raises:
        ForeignArchiveError: it is another program's, or holds what no backup holds.
        NewerArchiveError: a newer Roundhouse wrote it.
    """
    if content.get("format") != FORMAT:
        raise ForeignArchiveError(f"its {MANIFEST_NAME} does not say {FORMAT}")
    limits = {
        "schema_version": SCHEMA_VERSION,
        "state_schema_version": STATE_SCHEMA_VERSION,
        "responses_schema_version": RESPONSES_SCHEMA_VERSION,
    }
    for field, known_version in limits.items():
        version = content.get(field)
        if isinstance(version, int) and version > known_version:
            raise NewerArchiveError(
                f"a newer Roundhouse wrote it ({content.get('version')}; {field} {version}, this one reads up to "
                f"{known_version}): restore it with that version"
            )
    try:
        manifest = Manifest.model_validate(content)
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        raise ForeignArchiveError(f"its {MANIFEST_NAME} is not one of Roundhouse: {place}") from None
    for member in manifest.members:
        parse_member(member)
    return manifest
