"""The wire contract of the program `transfers`, which writes the models folder: what it is asked and what it answers.

| route | body | answer |
| --- | --- | --- |
| `POST /inspect` | `DownloadOrder` | `Inspection`: what the reference resolves to now. Nothing is stored |
| `POST /ranges` | `RangeOrder` | bytes of one file of the source, `application/octet-stream` |
| `POST /search` | `SearchOrder` | `FoundModels`: models of the hub whose names have these words. Nothing is stored |
| `POST /downloads` | `CopyOrder` | `Download`, status 202; 200 where it is under way already |
| `GET /downloads` | | `DownloadList`, newest first |
| `GET /downloads/{id}` | | `Download` |
| `DELETE /downloads/{id}` | | `Download` with the state `cancelled`; what was fetched of it is removed |
| `GET /downloads/events` | | server-sent events `download`, each a whole `Download` |
| `GET /files` | | `StoredFileList`: what downloads put into the models folder |
| `DELETE /files` | `RemovalOrder` | `Removal` |
| `GET /share` | | `SharePlace`: where the models folder is served to other hosts |
| `GET /health` | | `ok`; needs no token |

Errors have the envelope of `contract.errors`. On a port, the header `x-roundhouse-transfers-token` has the
content of the token file. A follower of events gets every download once when it connects, so one that reconnects
misses no final state.

Other hosts of an installation are served at an address of its own, with a token of its own (`Authorization: Bearer`):

| route | answer |
| --- | --- |
| `GET /models/{path}` | `SharedModel`: the files of the model at this path; status 202 while hashes are missing |
| `GET /files/{path}?sha256=HEX` | the bytes of the file with this content, or the range of them that was asked for |
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from contract.errors import ErrorBody
from contract.status import Wire

"""Header with the token in requests to a `transfers` that listens on a port."""
LONGEST_RANGE: Final = 32 * 1024 * 1024
"""Bytes of one answer of `POST /ranges`."""
LONGEST_WORDS: Final = 200
"""Characters of the words of a search."""
MOST_FOUND: Final = 20
"""Repositories of one answer to a search."""

DownloadState = Literal["queued", "resolving", "downloading", "verifying", "finished", "failed", "cancelled"]
"""`queued`: waits for another one; `resolving`: the source is asked for its files; `verifying`: all bytes are here and
are compared with the source's hash. The last three are final."""
RECORDS_FOLDER: Final = ".roundhouse/records"
"""Folder of the records, below the models folder."""
RECORD_VERSION: Final = 1
FINAL_STATES: Final[frozenset[DownloadState]] = frozenset({"finished", "failed", "cancelled"})


class Order(BaseModel):
    """Base of what a client sends. Immutable; an unknown field raises pydantic.ValidationError."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class DownloadOrder(Order):
    """What to download, or to look at."""

    reference: str = Field(
        min_length=1, max_length=2048, description="Reference, as `contract.model_reference` has it."
    )
    include_pickle: bool = Field(
        default=False, description="Whether files that run code when they are loaded (pickle) are taken, too."
    )


class CopyOrder(DownloadOrder):
    """A download, or by the reference `head:PATH` a copy from other hosts. Body of `POST /downloads`."""

    peers: list[Annotated[str, StringConstraints(pattern=r"^https?://[^/?#\s]{1,255}$")]] = Field(
        default_factory=list,
        max_length=64,
        exclude_if=lambda peers: not peers,
        description="Of a reference `head:PATH`, which the controller orders: addresses of the hosts to fetch from, as "
        "`SharePlace.url` has them. The first has the files; the others may have them, or a part.",
    )


class RangeOrder(Order):
    """Which bytes of which file. At the end of the file, fewer bytes are answered."""

    reference: str = Field(
        min_length=1, max_length=2048, description="Reference; `Inspection.reference` names a fixed revision."
    )
    path: str = Field(min_length=1, max_length=1024, description="File, as `RemoteFile.path` has it.")
    start: int = Field(default=0, ge=0, description="First byte, from 0.")
    length: int = Field(ge=1, le=LONGEST_RANGE, description="Number of bytes.")


def _check_printable(words: str) -> str:
    if not words.isprintable():
        raise ValueError("the words have control characters or line breaks")
    return words


SearchWords = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=LONGEST_WORDS),
    AfterValidator(_check_printable),
]
"""Words of a search. Others than up to 200 printable characters raise pydantic.ValidationError."""


class SearchOrder(Order):
    """Body of `POST /search`: words for the hub, and how many repositories the answer has at most."""

    words: SearchWords = Field(description="Words that names of repositories have.")
    limit: int = Field(default=10, ge=1, le=MOST_FOUND, description="Repositories at most.")


class RemovalOrder(Order):
    """Which download's files to remove: exactly one of the two must be set, which this class does not check."""

    id: str | None = Field(default=None, description="Id of a finished download.")
    path: str | None = Field(
        default=None, max_length=2048, description="Path below the models folder: a file of a download, or its folder."
    )


class SharePlace(Wire):
    """Where the models folder is served to other hosts."""

    url: str | None = Field(default=None, description="Address, `https://HOST:PORT` or `http:`; null: nowhere.")


class SharedFile(Wire):
    """A file of a model, as a host serves it to others."""

    path: str = Field(description="Path below the models folder.")
    size: int = Field(description="Bytes.")
    mtime_ns: int = Field(description="Time of the last change, in ns.")
    sha256: str | None = Field(default=None, description="Hash of the content; null: it is being read.")


class SharedModel(Wire):
    """The files of the model at a path below the models folder: the file with what belongs to it, or those below a
    folder."""

    files: list[SharedFile] = Field(description="The file at the path first, the others by path.")
    is_folder: bool = Field(default=False, description="Whether the path is that of a folder.")


class RemoteFile(Wire):
    """A file as the source lists it."""

    path: str = Field(description="Path at the source.")
    target: str = Field(description="Path below the models folder that the file gets.")
    size: int = Field(description="Bytes.")
    sha256: str | None = Field(
        default=None, description="Hash of the content; null: the source has another hash, which is compared as well."
    )
    is_present: bool = Field(default=False, description="Whether the models folder has the file, downloaded before.")


class Inspection(Wire):
    """What a reference resolves to."""

    reference: str = Field(description="The reference, in its canonical form.")
    pinned: str = Field(
        description="The same with the revision that it is now: naming it always yields the same bytes."
    )
    revision: str | None = Field(default=None, description="Commit or digest; null: the source has none.")
    files: list[RemoteFile] = Field(description="The files, the main one first.")
    main: str = Field(description="Path below the models folder for a definition: a file, or a folder.")
    projector: str | None = Field(
        default=None, description="Path below the models folder of the multimodal projector (mmproj); null: none."
    )
    total_bytes: int = Field(description="Size of all files.")
    missing_bytes: int = Field(description="Size of the files that the models folder does not have.")
    free_bytes: int = Field(description="Bytes of the disk that downloads may take.")


class ModelChoice(Wire):
    """One model that a repository of the hub offers for download: a GGUF file (with all its parts) of one quantisation,
    or the folder of safetensors."""

    reference: str = Field(description="What an order names to get it.")
    format: Literal["gguf", "safetensors"] = Field(description="Format of its weights.")
    quantisation: str | None = Field(default=None, description="As its file's name tells it; null: it tells none.")
    main: str = Field(description="As `Inspection.main`.")
    projector: str | None = Field(default=None, description="As `Inspection.projector`.")
    file_count: int = Field(description="Number of files, the projector among them.")
    size: int = Field(description="Bytes of all its files.")


class RepositoryFacts(Wire):
    """A repository of the hub in the results of a search, without its models."""

    repository: str = Field(description="`USER/REPO`.")
    downloads: int | None = Field(default=None, description="Downloads of the last 30 days; null: not known.")
    is_gated: bool = Field(default=False, description="Whether its files need a token that accepted its terms.")
    licence: str | None = Field(default=None, description="Name of its licence, as the hub tags it; null: none.")
    left_out: int = Field(default=0, description="Further models of it, which are not listed.")
    reason: str | None = Field(default=None, description="Why its models are not known; null: they are.")


class FoundRepository(RepositoryFacts):
    """A repository of the hub in the results of a search, with the models that it offers."""

    choices: list[ModelChoice] = Field(default_factory=list, description="Its models, the smallest first.")


class FoundModels(Wire):
    """Answer of `POST /search`: the repositories that the hub found."""

    repositories: list[FoundRepository] = Field(description="Those with a model, the most downloaded first.")


class DownloadFile(Wire):
    """One file of a download."""

    path: str = Field(description="Path below the models folder.")
    size: int = Field(description="Bytes.")
    done_bytes: int = Field(description="Bytes that are here.")
    sha256: str | None = Field(default=None, description="Hash of the content; null: not known yet.")


class Download(Wire):
    """A download and how far it is."""

    id: str = Field(description="Id of the download.")
    reference: str = Field(description="The reference, in its canonical form.")
    pinned: str | None = Field(default=None, description="The same with its revision; null: not resolved yet.")
    state: DownloadState = Field(description="How far it is.")
    files: list[DownloadFile] = Field(default_factory=list, description="The files; empty: not resolved yet.")
    main: str | None = Field(
        default=None,
        description="As `Inspection.main`; null: not resolved yet, or it ended before its files were here.",
    )
    projector: str | None = Field(default=None, description="As `Inspection.projector`.")
    total_bytes: int = Field(default=0, description="Size of all files; 0: not resolved yet.")
    done_bytes: int = Field(default=0, description="Bytes that are here.")
    bytes_per_s: float | None = Field(default=None, description="Speed of the last seconds; null: not measured.")
    remaining_s: float | None = Field(default=None, description="Seconds left at this speed; null: not known.")
    waiting: str | None = Field(
        default=None, description="Why nothing comes just now, for people, such as a source that asks to wait."
    )
    has_finished: bool = Field(
        default=False,
        description="Whether it has finished before, also if it was ordered again since: `pinned`, `main` and "
        "`projector` are then those of the last run that finished, and others leave them.",
    )
    error: ErrorBody | None = Field(default=None, description="Why it failed; null: it did not.")
    created_at: float = Field(description="Unix time in seconds of the order.")
    ended_at: float | None = Field(default=None, description="Unix time in seconds of the end; null: it goes on.")


class DownloadList(Wire):
    """Answer of `GET /downloads`."""

    downloads: list[Download] = Field(description="All downloads that are known, newest first.")


class StoredFile(Wire):
    """A file that a download put into the models folder."""

    path: str = Field(description="Path below the models folder.")
    size: int = Field(description="Bytes.")
    sha256: str = Field(description="Hash of the content.")
    download: str = Field(description="Id of the download.")
    reference: str = Field(description="Pinned reference of the download.")
    is_unchanged: bool = Field(description="Whether the file is there as it was put.")


class StoredFileList(Wire):
    """Answer of `GET /files`."""

    files: list[StoredFile] = Field(description="The files, by path.")


class Removal(Wire):
    """What was removed from the models folder."""

    removed: list[str] = Field(description="Paths below the models folder.")
    kept: list[str] = Field(description="Paths that stay, because another download has them, too.")
    freed_bytes: int = Field(description="Bytes of what was removed.")


class PlacedFile(BaseModel):
    """A file that a download put into the models folder, as its record has it."""

    model_config = ConfigDict(frozen=True)

    path: str = Field(description="Path below the models folder.")
    size: int = Field(description="Bytes.")
    sha256: str = Field(description="Hash of the content.")
    mtime_ns: int = Field(description="Time of the last change, in ns, when it was put there.")


class DownloadRecord(BaseModel):
    """What is kept of a download, in a JSON file below the models folder: `RECORDS_FOLDER`, `{id}.json`. `transfers`
    writes it, and the controller reads it, so that it knows the downloaded models without asking anybody."""

    model_config = ConfigDict(frozen=True)

    schema_version: int = Field(default=RECORD_VERSION, description="Version of this form.")
    id: str = Field(description="Id of the download.")
    reference: str = Field(description="The reference, in its canonical form.")
    include_pickle: bool = Field(default=False, description="As `DownloadOrder.include_pickle`.")
    peers: list[str] = Field(
        default_factory=list, exclude_if=lambda peers: not peers, description="As `CopyOrder.peers`."
    )
    pinned: str | None = Field(
        default=None,
        description="The same with the revision that the last run which finished put into place; null: none has.",
    )
    wanted: str | None = Field(
        default=None,
        exclude_if=lambda wanted: wanted is None,
        description="The same with the revision that the run under way fetches, or that the last run did not get; "
        "null: not resolved yet, or it has finished.",
    )
    state: DownloadState = Field(default="queued", description="How far it is.")
    main: str | None = Field(
        default=None, description="As `Inspection.main`, of the last run that finished; null: none has."
    )
    projector: str | None = Field(default=None, description="As `Inspection.projector`.")
    placed: list[PlacedFile] = Field(
        default_factory=list, description="The files that the download has put, or is just putting, into their places."
    )
    found: list[PlacedFile] = Field(
        default_factory=list, description="Files of it that were there already, put by somebody else. They are kept."
    )
    has_finished: bool = Field(default=False, description="As `Download.has_finished`.")
    error: ErrorBody | None = Field(default=None, description="Why it failed; null: it did not.")
    created_at: float = Field(description="Unix time in seconds of the order.")
    ended_at: float | None = Field(default=None, description="Unix time in seconds of the end; null: it goes on.")
