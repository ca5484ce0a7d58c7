"""The manifest of a backup archive, and the members that an archive may contain. Pure.

Members are named `FOLDER/FILE`, from the names listed here, so that no name in an archive leads outside of these
folders.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from common.sqlite_files import CATALOG_NAME, CATALOG_SCHEMA_VERSION, RESPONSES_NAME, RESPONSES_SCHEMA_VERSION
from contract.status import SCHEMA_VERSION as STATE_SCHEMA_VERSION
from controller.config.debounce import FILE_NAME as LAST_GOOD_NAME
from controller.config.parse import is_read
from controller.state_dir import IDENTITY_NAME, MEMORY_NAME, OBSERVED_MEMORY_NAME

MANIFEST_NAME: Final = "manifest.json"
FORMAT: Final = "roundhouse-backup"
SCHEMA_VERSION: Final = 2
"""Version of the archive format. Raised when an earlier Roundhouse would restore the archive wrongly."""
SCHEMA_VERSION_WITHOUT_DOCUMENTS: Final = 1
"""Version of an archive without documents, and the lowest that is read."""
STATE_FOLDER: Final = "state"
RESPONSES_FOLDER: Final = "responses"
DESIRED_FOLDER: Final = "desired-state"
IDENTITY: Final = IDENTITY_NAME
STATE_FILES: Final = (IDENTITY, MEMORY_NAME, LAST_GOOD_NAME, OBSERVED_MEMORY_NAME)
"""JSON files of the state folder that a backup contains."""
JOURNAL: Final = "journal.db"
RESPONSES: Final = RESPONSES_NAME
DOCUMENTS_FOLDER: Final = "documents"
CATALOG_MEMBER: Final = f"{DOCUMENTS_FOLDER}/{CATALOG_NAME}"
_ORIGINAL: Final = re.compile(rf"{DOCUMENTS_FOLDER}/originals/([0-9a-f]{{64}})")


class BackupError(Exception):
    """A backup cannot be made or restored. The message is for the operator; in the subclasses its subject is the
    archive."""


class ForeignArchiveError(BackupError):
    """The file is not a backup that Roundhouse wrote."""


class DamagedArchiveError(BackupError):
    """The archive is cut off, or a member differs from the manifest."""


class OtherVersionError(BackupError):
    """A newer version of Roundhouse, or one of before 0.1.0, wrote the archive, in a format that this version cannot
    read."""


class Member(BaseModel):
    """Size in bytes and SHA-256 (hex) of one file of the archive, as the manifest has them."""

    model_config = ConfigDict(frozen=True, strict=True)

    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class DocumentsSummary(BaseModel):
    """Number and total size in bytes of the originals (the files of documents) in an archive. They follow the members
    of the manifest, ascending by the SHA-256 that names them; the manifest does not list them, because it would be too
    large."""

    model_config = ConfigDict(frozen=True, strict=True)

    originals: int = Field(ge=0)
    bytes: int = Field(ge=0)
    """Of all originals together."""


class Manifest(BaseModel):
    """Content of `manifest.json`, the first file of an archive: who wrote the archive, when, and which files follow
    (`members`; originals of documents are only counted, in `documents`)."""

    model_config = ConfigDict(frozen=True, strict=True)

    format: Literal["roundhouse-backup"] = FORMAT
    schema_version: int = SCHEMA_VERSION
    state_schema_version: int = STATE_SCHEMA_VERSION
    """Schema version of the JSON files and the journal."""
    responses_schema_version: int = RESPONSES_SCHEMA_VERSION
    """Schema version of `responses.db`."""
    catalog_schema_version: int = CATALOG_SCHEMA_VERSION
    """Schema version of the catalog of documents."""
    version: str
    """Version of Roundhouse that wrote the archive."""
    made_at: float
    """Unix time of the backup."""
    instance: str
    """Instance id of the installation; empty in a backup of documents alone."""
    members: dict[str, Member]
    """Size and digest by member name, such as `state/memory.json`."""
    documents: DocumentsSummary | None = None
    """None: the backup has no documents."""

    @property
    def has_installation(self) -> bool:
        """Whether the archive holds an installation (its state, perhaps with documents), not documents alone."""
        return f"{STATE_FOLDER}/{IDENTITY}" in self.members


@dataclass(frozen=True, slots=True)
class MemberPlace:
    """Place of an archive's file in an installation: a folder and a file name."""

    folder: str
    """`state`, `responses`, `desired-state` or `documents`."""
    name: str
    """Name of a file directly in the folder."""

    @property
    def member(self) -> str:
        """Name of the file in an archive: `folder` and `name`, joined by a slash."""
        return f"{self.folder}/{self.name}"

    @property
    def is_database(self) -> bool:
        """Whether the file is the journal or `responses.db`, which are SQLite databases. False for the catalog of
        documents, which is one too and is checked apart."""
        return self.name in (JOURNAL, RESPONSES) and self.folder != DESIRED_FOLDER


def parse_member(member: str) -> MemberPlace:
    """Return the place in an installation of an archive member that a manifest lists. Raises ForeignArchiveError where
    no manifest of a backup lists such a member: one with a path out of its folder, for example, or an original of a
    document (see `hash_of_original`)."""
    folder, _, name = member.partition("/")
    is_known = (
        (folder == STATE_FOLDER and name in (*STATE_FILES, JOURNAL))
        or (folder == RESPONSES_FOLDER and name == RESPONSES)
        or member == CATALOG_MEMBER
        or (folder == DESIRED_FOLDER and is_read(name) and not set(name) & {"/", "\0"})
    )
    if not is_known:
        raise ForeignArchiveError(f"it holds {member!r}, which no backup holds")
    return MemberPlace(folder, name)


def hash_of_original(member: str) -> str | None:
    """Return the SHA-256 that an archive member is named by; None: it is no original of a document."""
    found = _ORIGINAL.fullmatch(member)
    return None if found is None else found[1]


def parse_manifest(content: Mapping[str, object]) -> Manifest:
    """Validate the content of `manifest.json`, decoded, and return the manifest.

    Raises:
        ForeignArchiveError: another program wrote the archive, a field is missing or wrong, or it lists a member that
            no backup contains.
        OtherVersionError: a newer Roundhouse, or one of before 0.1.0, wrote the archive.
    """
    if content.get("format") != FORMAT:
        raise ForeignArchiveError(f"its {MANIFEST_NAME} does not say {FORMAT}")
    limits = {
        "schema_version": (SCHEMA_VERSION_WITHOUT_DOCUMENTS, SCHEMA_VERSION),
        "state_schema_version": (STATE_SCHEMA_VERSION, STATE_SCHEMA_VERSION),
        "responses_schema_version": (RESPONSES_SCHEMA_VERSION, RESPONSES_SCHEMA_VERSION),
        "catalog_schema_version": (CATALOG_SCHEMA_VERSION, CATALOG_SCHEMA_VERSION),
    }
    for field, (lowest_version, highest_version) in limits.items():
        version = content.get(field)
        if not isinstance(version, int) or lowest_version <= version <= highest_version:
            continue
        if version > highest_version:
            writer, limit = "a newer Roundhouse", f"this one reads up to {highest_version}"
        else:
            writer, limit = "a Roundhouse of before 0.1.0", f"this one reads from {lowest_version} on"
        raise OtherVersionError(
            f"{writer} wrote it ({content.get('version')}; {field} {version}, {limit}): restore it with that version"
        )
    try:
        manifest = Manifest.model_validate(content)
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        raise ForeignArchiveError(f"its {MANIFEST_NAME} is not one of Roundhouse: {place}") from None
    for member in manifest.members:
        parse_member(member)
    if (manifest.documents is not None) is not (CATALOG_MEMBER in manifest.members):
        raise ForeignArchiveError(f"its {MANIFEST_NAME} is not one of Roundhouse: documents")
    return manifest
