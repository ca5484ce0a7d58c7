"""The command line's questions to a gateway about documents.

Files are found, added and watched until they are searchable, and searches are measured.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote

import aiohttp
from watchfiles import awatch

from cli.gateway_client import GatewayAddress, GatewayClient, RefusedError
from cli.output import CommandError, ExitCode, print_error, print_line
from cli.rag.ranking import Question, RankingScores, WayResult, average_scores, score_ranking

PAGE: Final = 100
_PART: Final = 256 * 1024
_TENANT_HEADER: Final = "x-tenant-id"


class RagClient(GatewayClient):
    """Asks one gateway about documents and searches. Errors: see GatewayClient."""

    def __init__(self, address: GatewayAddress, tenant: str | None) -> None:
        """Connect to nothing yet. `tenant`: sent as `X-Client-Id`, which names the tenant while the gateway has no
        keys; None: not sent, so that the tenant is `default`."""
        super().__init__(address, {} if tenant is None else {"x-client-id": tenant})

    async def add_file(self, path: Path, document_id: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Send a file, and return the document as it was accepted, as `/v1/documents` answers it. It is searchable
        later, when `get_document` has the status `ready`. A document with this id is replaced. `metadata`: its
        attributes, as JSON can hold them.

        Raises OSError where the file cannot be opened.
        """
        with path.open("rb") as content:
            form = aiohttp.FormData()
            form.add_field("file", content, filename=path.name)
            form.add_field("id", document_id)
            form.add_field("metadata", json.dumps(metadata))
            return await self._ask("POST", "/v1/documents", data=form)

    async def add_original(
        self, fields: Mapping[str, str], media_type: str | None, content: AsyncIterator[bytes]
    ) -> dict[str, Any]:
        """Send a document, and return it as it was accepted, as `/v1/documents` answers it; it is searchable later. A
        document with the same id is replaced.

        `fields`: of the form, beside the file: `id`, `filename`, `metadata` (as JSON text) and others that the route
        takes. `media_type`: of the content; None: not said. What `content` raises becomes a CommandError, too.
        """
        form = aiohttp.FormData()
        # Named by a field of the form, because not every name survives in the header of a file.
        form.add_field("file", content, filename="", content_type=media_type or "application/octet-stream")
        for name, value in fields.items():
            form.add_field(name, value)
        return await self._ask("POST", "/v1/documents", data=form)

    async def read_tenant(self) -> str:
        """Ask the gateway for which tenant this client asks, and return its name, as the gateway writes it in a header
        (`?` for what a header cannot carry); empty where the answer names none. Errors: see GatewayClient."""
        async with self._open("GET", "/v1/documents", params={"limit": "1"}) as answer:
            return answer.headers.get(_TENANT_HEADER, "")

    async def read_content(self, document_id: str) -> AsyncGenerator[bytes, None]:
        """Yield the parts of the original (the file as it was sent) of a document's newest version. Close the generator
        (`aclosing`) if it is not read to its end. Raises RefusedError with `document_not_found` where the tenant has no
        such document."""
        path = f"/v1/documents/{quote(document_id, safe='')}/content"
        async with self._open("GET", path) as answer:
            async for part in answer.content.iter_chunked(_PART):
                yield part

    async def get_document(self, document_id: str) -> dict[str, Any]:
        """Return the document with this id, as `/v1/documents/{id}` answers it. Raises RefusedError with
        `document_not_found` where the tenant has none."""
        return await self._ask("GET", f"/v1/documents/{quote(document_id, safe='')}")

    async def find_document(self, document_id: str) -> dict[str, Any] | None:
        """Return the document with this id, as `get_document` does; None: the tenant has none."""
        try:
            return await self.get_document(document_id)
        except RefusedError as error:
            if error.error_code == "document_not_found":
                return None
            raise

    async def list_documents(
        self, metadata: Mapping[str, Sequence[str]] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield all documents of the tenant, the oldest first, and end. Asks for 100 at a time, as they are consumed.
        `metadata`: only those that have one of these values of each attribute.

        Raises RefusedError with `invalid_request` where the last document of a page was deleted before the next page
        was asked for.
        """
        after: dict[str, str] = {} if metadata is None else {"filter": json.dumps(metadata)}
        while True:
            page = await self._ask("GET", "/v1/documents", params={"limit": str(PAGE), "order": "asc", **after})
            for document in page["data"]:
                yield document
            if not page["has_more"]:
                return
            after["after"] = page["last_id"]

    async def list_chunks(self, document_id: str) -> AsyncIterator[dict[str, Any]]:
        """Yield the chunks of a document's searchable version, in their order, and end. Raises RefusedError with
        `document_not_found`, with the first chunk, where the tenant has no such document."""
        path = f"/v1/documents/{quote(document_id, safe='')}/chunks"
        after: dict[str, str] = {}
        while True:
            page = await self._ask("GET", path, params={"limit": str(PAGE), **after})
            for chunk in page["data"]:
                yield chunk
            if not page["has_more"]:
                return
            after = {"after": str(page["data"][-1]["index"])}

    async def delete_document(self, document_id: str) -> None:
        """Delete the document with this id: no search finds it when this returns. Raises RefusedError with
        `document_not_found` where the tenant has none."""
        await self._ask("DELETE", f"/v1/documents/{quote(document_id, safe='')}")

    async def search(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer of `/v1/search`, whose `data` is the list of hits, best first. `request`: the body, as
        JSON. Errors: see GatewayClient."""
        return await self._ask("POST", "/v1/search", json=request)

    async def list_tenants(self) -> list[dict[str, Any]]:
        """Return what each tenant has stored, as `/v1/tenants` answers it: of all tenants with a key of scope `admin`,
        or where no keys are declared, else the key's own. Errors: see GatewayClient."""
        return list((await self._ask("GET", "/v1/tenants"))["data"])

    async def get_status(self) -> dict[str, Any]:
        """Return the answer of `/v1/retrieval`. Needs a key with the scope `admin`. Errors: see GatewayClient."""
        return await self._ask("GET", "/v1/retrieval")

    async def start_reindex(self) -> dict[str, Any]:
        """Start a reindex in the background, and return the state of retrieval as it began. Needs a key with the scope
        `admin`. Errors: see GatewayClient."""
        return await self._ask("POST", "/v1/retrieval/reindex")


ADDED_AT_ONCE: Final = 4
"""Files that are sent at the same time."""
POLL_S: Final = 0.3
_UNFIT: Final = re.compile(r"[^A-Za-z0-9._:@+~=-]+")
_LONGEST_ID: Final = 200
ORIGIN: Final = "added_from"
"""Attribute of a document: the `origin` of the file that it was added from."""


@dataclass(frozen=True, slots=True)
class FileToAdd:
    """A file to send, and the id of the document that it becomes or replaces (see `document_id_of`)."""

    path: Path
    document_id: str
    shown_path: str
    """The document's attribute `path`: as it was given; of an absolute one only from the added file's or folder's own
    name on, for the host's folders are nobody's business."""
    origin: str = ""
    """The document's attribute `added_from`: a digest of where the file lies, however its path is written."""


def find_files(paths: Sequence[Path]) -> list[FileToAdd]:
    """Return the files that `paths` name, sorted by path, one per document id. A folder stands for all files below it,
    but for files and folders whose names begin with a dot, and what is no file, a pipe for example; links to folders
    are not followed, and a folder that cannot be read counts as empty.

    Raises CommandError (USAGE) for a path that does not exist, and where two files would have the same document id.
    """
    found: dict[str, FileToAdd] = {}
    for path in paths:
        if not path.exists():
            raise CommandError(f"there is no {path}", ExitCode.USAGE)
        for file in _files_below(path):
            shown = file.relative_to(path.parent) if path.is_absolute() else file
            added = FileToAdd(file, document_id_of(file), str(shown), _origin_of(file))
            other = found.setdefault(added.document_id, added)
            if other.path.resolve() != file.resolve():
                message = f"{other.path} and {file} would both be the document {added.document_id}: add one by one"
                raise CommandError(message, ExitCode.USAGE)
    return sorted(found.values(), key=lambda each: str(each.path))


def document_id_of(path: Path) -> str:
    """Return the id of a file's document: `path` as it was given, neither made absolute nor resolved, with `:` between
    its parts. The same command line therefore replaces the documents that it added before; for another one of the same
    files, `keep_ids` finds them.

    The id lacks a leading `/` and the parts `.` and `..`. Each run of characters other than `A-Za-z0-9._:@+~=-` becomes
    one `-`. Only the last 200 characters are kept, from the first letter or digit on. The id is `document` if nothing
    is left. Two paths may have the same id.
    """
    parts = [part for part in path.parts if part not in ("/", ".", "..")]
    return _UNFIT.sub("-", ":".join(parts))[-_LONGEST_ID:].lstrip("._:@+~=-") or "document"


def _origin_of(path: Path) -> str:
    place = os.fsencode(path.parent.resolve() / path.name)
    return hashlib.sha256(place).hexdigest()[:16]


async def keep_ids(client: RagClient, files: Sequence[FileToAdd]) -> list[FileToAdd]:
    """Return the files, each with the id of the document that was added from it before, also by another spelling of its
    path. Raises CommandError where one would replace a document that was added from another file; documents that do
    not say from where are replaced. Other errors: see RagClient."""
    known: dict[str, set[str]] = {}
    for first in range(0, len(files), PAGE):
        origins = [file.origin for file in files[first : first + PAGE]]
        async for document in client.list_documents({ORIGIN: origins}):
            known.setdefault(document["metadata"][ORIGIN], set()).add(document["id"])
    own_ids = {file.document_id for file in files}
    kept: list[FileToAdd] = []
    new: list[FileToAdd] = []
    for file in files:
        ids = known.get(file.origin, set())
        if file.document_id in ids:
            kept.append(file)
        elif others := sorted(ids - own_ids):
            kept.append(replace(file, document_id=others[0]))
        else:
            new.append(file)
    queue = list(reversed(new))

    async def check() -> None:
        while queue:
            file = queue.pop()
            document = await client.find_document(file.document_id)
            if document is not None and ORIGIN in document["metadata"]:
                raise CommandError(
                    f"{file.document_id} was added from another folder: `rag add {file.path.absolute()}` adds the file "
                    f"beside it, and `--set {ORIGIN}=NAME` replaces it",
                    ExitCode.FAILED,
                )

    await asyncio.gather(*(check() for _ in range(ADDED_AT_ONCE)))
    return [*kept, *new]


async def add_files(
    client: RagClient,
    files: Iterable[FileToAdd],
    metadata: Mapping[str, Any],
    *,
    waits: bool,
    on_result: Callable[[FileToAdd, dict[str, Any] | CommandError], None],
) -> None:
    """Send files, up to 4 at a time. Each document gets the attributes `metadata`, and `path` and `added_from`, the
    file's `shown_path` and `origin`, unless `metadata` has them.

    `on_result` is called once per file, as each is done: with the document as the gateway answers it, or with a
    CommandError that says why the file failed (not readable, or refused), after which the other
    files go on. `waits`: a file is done when its document is searchable or has failed, which no timeout bounds; else
    when the gateway has accepted it. Raises CommandError (NO_CONTROLLER) as soon as no gateway answers: the files that
    are left are not tried.
    """
    queue = list(files)
    queue.reverse()
    unreached: list[CommandError] = []

    async def work() -> None:
        while queue and not unreached:
            file = queue.pop()
            result = await _add_one(client, file, metadata, waits=waits)
            if isinstance(result, CommandError) and result.code is ExitCode.NO_CONTROLLER:
                unreached.append(result)
            else:
                on_result(file, result)

    await asyncio.gather(*(work() for _ in range(ADDED_AT_ONCE)))
    if unreached:
        raise unreached[0]


async def _add_one(
    client: RagClient, file: FileToAdd, metadata: Mapping[str, Any], *, waits: bool
) -> dict[str, Any] | CommandError:
    try:
        attributes = {"path": file.shown_path, ORIGIN: file.origin, **metadata}
        document = await client.add_file(file.path, file.document_id, attributes)
        while waits and document["status"] not in ("ready", "failed"):
            await asyncio.sleep(POLL_S)
            document = await client.get_document(file.document_id)
    except CommandError as error:
        return error
    except OSError as error:
        return CommandError(error.strerror or str(error), ExitCode.FAILED)
    if document["status"] == "failed":
        return CommandError(document["error"]["message"], ExitCode.FAILED)
    return document


def _files_below(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        files = (Path(folder) / name for name in sorted(names) if not name.startswith("."))
        # Whoever opens a pipe waits for its other end.
        yield from (file for file in files if file.is_file())


CLOCK_SLACK_S: Final = 2.0
"""Seconds by which a file's time may be coarser than the clock, or of another one."""
SETTLE_MS: Final = 500
"""Milliseconds without a change after which a file counts as written."""


class AddedFiles(NamedTuple):
    """The files that were added before `follow_files` began to watch them, and when they were looked for."""

    files: Sequence[FileToAdd]
    began_at: float
    """Unix time at which the files were looked for."""


async def follow_files(
    client: RagClient,
    paths: Sequence[Path],
    metadata: Mapping[str, Any],
    added: AddedFiles,
    on_result: Callable[[FileToAdd, dict[str, Any] | CommandError], None],
) -> None:
    """Add files below `paths` that change, and delete the documents of files that vanish, until cancelled. Prints to
    stdout that it watches, and each deletion. A path that does not exist at the start is not watched.

    `added`: what was added before; files that changed meanwhile are sent first. `metadata`: attributes of each document
    that is sent, beside `path` (see `add_files`). `on_result`: called once per file, with the document or the error. A
    file that fails is sent again when it changes; a deletion that fails is printed, and tried again after the next
    change. While no gateway answers, which is printed once, both are tried again until one does. A new file that would
    have the document id of another one, also of another folder (see `keep_ids`), is printed, and nothing is done until
    it is gone.
    """
    known = {file.document_id: file for file in added.files}
    ids = {file.origin: file.document_id for file in added.files}
    watched = [path for path in paths if path.exists()]
    watch = awatch(*watched, debounce=SETTLE_MS, step=SETTLE_MS, yield_on_timeout=True, rust_timeout=SETTLE_MS)
    print_line("watching; Ctrl-C ends")
    is_first = True
    changed: set[Path] = set()
    """What has changed since the last look after which something was done."""
    told: str | None = None
    """Why nothing is done now, as it was printed; None: something is."""
    unsent: set[str] | None = None
    """Ids of documents that wait for a gateway; None: one answers."""
    async for changes in watch:
        if not (changes or is_first or unsent is not None):
            continue
        changed |= {Path(name).resolve() for _, name in changes}
        try:
            present = await _find_present(client, paths, ids, looks_for_ids=ORIGIN not in metadata)
        except CommandError as error:
            if str(error) != told:
                print_error(str(error))
            told = str(error)
            continue
        told = None
        kept = {document_id: known[document_id] for document_id in known.keys() - present.keys()}
        updated = {
            file.document_id: file
            for file in present.values()
            if file.path.resolve() in changed
            or file.document_id in (unsent or ())
            or (is_first and _changed_since(file.path, added.began_at))
        }

        def note_result(file: FileToAdd, result: dict[str, Any] | CommandError, waiting: set[str]) -> None:
            waiting.discard(file.document_id)
            on_result(file, result)

        waiting = set(updated)
        try:
            await _delete_documents(client, kept)
            await add_files(
                client, updated.values(), metadata, waits=True, on_result=partial(note_result, waiting=waiting)
            )
        except CommandError as error:
            if unsent is None:
                print_error(f"{error}; what changed is sent once it answers")
            unsent = waiting
        else:
            unsent = None
        known, is_first, changed = present | kept, False, set()


async def _find_present(
    client: RagClient, paths: Sequence[Path], ids: dict[str, str], *, looks_for_ids: bool
) -> dict[str, FileToAdd]:
    """Return the files below `paths` by document id. `ids`: known ids by origin, to which those of new files are added
    with `looks_for_ids`. Raises CommandError as `find_files` and `keep_ids` do, but not while no gateway answers."""
    found = find_files([path for path in paths if path.exists()])
    new = [file for file in found if file.origin not in ids] if looks_for_ids else []
    try:
        ids |= {file.origin: file.document_id for file in await keep_ids(client, new)}
    except CommandError as error:
        if error.code is not ExitCode.NO_CONTROLLER:  # which sending them tells
            raise
    named = (replace(file, document_id=ids.get(file.origin, file.document_id)) for file in found)
    return {file.document_id: file for file in named}


async def _delete_documents(client: RagClient, kept: dict[str, FileToAdd]) -> None:
    """Delete these documents, by id, and take those that were deleted out of `kept`. One that is refused is printed.
    Raises CommandError (NO_CONTROLLER) as soon as no gateway answers."""
    for document_id in list(kept):
        try:
            await client.delete_document(document_id)
        except CommandError as error:
            if error.code is ExitCode.NO_CONTROLLER:
                raise
            print_error(f"{document_id}: {error}")
        else:
            print_line(f"deleted {document_id}")
            del kept[document_id]


def _changed_since(path: Path, began_at: float) -> bool:
    try:
        return path.stat().st_mtime >= began_at - CLOCK_SLACK_S
    except OSError:  # it has vanished, which the next look shows
        return False


Item = TypeVar("Item")
Answer = TypeVar("Answer")

SEARCHES_AT_ONCE: Final = 4
"""Searches that are asked at the same time."""
WAYS: Final[Mapping[str, Mapping[str, Any]]] = {
    "sparse": {"mode": "sparse"},
    "dense": {"mode": "dense"},
    "hybrid": {"mode": "hybrid"},
    "reranked": {"rerank": True},
}
"""What each way of searching adds to the body of a search. `reranked` is the gateway's default mode, reranked."""


class QuestionError(Exception):
    """A line of a questions' file is no question. The message says why; `parse_questions` turns it into a CommandError
    with the line's number."""


def parse_questions(lines: Iterable[str], source: str) -> list[Question]:
    """Return the questions in `lines`, each a JSON object such as `{"query": "...", "relevant": ["document id"]}`.

    `relevant` lists the ids of the documents that answer the query, each with grade 1, or maps ids to grades from 0; at
    least one grade must be above 0. Blank lines and other keys are ignored. `source`: name of the file, for messages.

    Raises CommandError (USAGE), with `source` and the line's number counted from 1, for a line that is no question;
    and, with `source`, if there is no question at all.
    """
    questions = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                questions.append(_parse_question(line))
            except QuestionError as error:
                raise CommandError(f"{source}, line {number}: {error}", ExitCode.USAGE) from None
    if not questions:
        raise CommandError(f"{source} holds no question", ExitCode.USAGE)
    return questions


async def find_unknown_documents(client: RagClient, questions: Sequence[Question]) -> list[str]:
    """Return the ids, sorted, of relevant documents that the tenant does not have, so that no search can find them.
    Reads the whole list of the tenant's documents. Raises RefusedError where the gateway refuses, and CommandError
    where it does not answer, or not as a gateway does."""
    wanted = {document for question in questions for document, grade in question.grades.items() if grade > 0}
    async for document in client.list_documents():
        wanted.discard(document["id"])
    return sorted(wanted)


async def evaluate_ways(
    client: RagClient, questions: Sequence[Question], *, top_k: int, on_answer: Callable[[str, int], None]
) -> list[WayResult]:
    """Search every question in every way of WAYS (`sparse`, `dense`, `hybrid`, `reranked`), and return one result for
    each way, in that order.

    `questions`: at least one. A document's rank is that of its best hit among `top_k`. If the gateway refuses the first
    search of a way, no further search is made in that way; its result has the gateway's reason and no scores.
    `on_answer`: called after each answer that is scored, with the way's name and the number of its answers so far.

    Raises CommandError for a search that fails later, and where no gateway answers.
    """
    results = []
    for name, options in WAYS.items():
        body = {"top_k": top_k, **options}
        try:
            await client.search({**body, "query": questions[0].query})
        except CommandError as error:
            if error.code is not ExitCode.FAILED:
                raise
            results.append(WayResult(name, None, str(error), (), is_complete=True))
            continue
        results.append(await _evaluate_way(client, name, body, questions, on_answer))
    return results


def rank_documents(hits: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the ids of the documents of `hits`, which are ordered best first: each id once, at the place of its first
    hit."""
    return list(dict.fromkeys(hit["document_id"] for hit in hits))


async def _evaluate_way(
    client: RagClient,
    name: str,
    body: Mapping[str, Any],
    questions: Sequence[Question],
    on_answer: Callable[[str, int], None],
) -> WayResult:
    scores: list[RankingScores] = []
    is_complete = True

    async def search(question: Question) -> Mapping[str, Any]:
        return await client.search({**body, "query": question.query})

    async for question, answer in _ask_in_order(questions, search):
        is_complete &= answer["complete"]
        scores.append(score_ranking(rank_documents(answer["data"]), question.grades))
        on_answer(name, len(scores))
    return WayResult(name, average_scores(scores), None, scores, is_complete)


async def _ask_in_order(
    items: Sequence[Item], ask: Callable[[Item], Awaitable[Answer]]
) -> AsyncIterator[tuple[Item, Answer]]:
    """Yield each item with what `ask` returned for it, SEARCHES_AT_ONCE at a time. Raises what `ask` raises."""
    for start in range(0, len(items), SEARCHES_AT_ONCE):
        batch = items[start : start + SEARCHES_AT_ONCE]
        for item, answer in zip(batch, await asyncio.gather(*map(ask, batch)), strict=True):
            yield item, answer


def _parse_question(line: str) -> Question:
    try:
        parsed = json.loads(line)
    except ValueError as error:
        raise QuestionError(f"this is no JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise QuestionError('a question is an object, such as {"query": "...", "relevant": ["document id"]}')
    query, relevant = parsed.get("query"), parsed.get("relevant")
    if not isinstance(query, str) or not query.strip():
        raise QuestionError("`query` must be a text")
    if isinstance(relevant, list):
        relevant = dict.fromkeys(map(_checked_id, relevant), 1.0)
    if not isinstance(relevant, dict):
        raise QuestionError('`relevant` must be a list of document ids, or grades by id: {"id": 2, "other": 1}')
    grades = {_checked_id(document): _checked_grade(document, grade) for document, grade in relevant.items()}
    if not any(grades.values()):
        raise QuestionError("`relevant` must name a document with a grade above 0")
    return Question(query, grades)


def _checked_id(document: object) -> str:
    if not isinstance(document, str) or not document:
        raise QuestionError(f"`relevant` holds {json.dumps(document)}, which is no document id")
    return document


def _checked_grade(document: str, grade: object) -> float:
    if isinstance(grade, bool) or not isinstance(grade, int | float) or not math.isfinite(grade) or grade < 0:
        raise QuestionError(f"the grade of {document} must be a number from 0")
    return float(grade)
