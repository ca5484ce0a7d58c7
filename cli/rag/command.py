"""`roundhouse rag`: its commands."""

from __future__ import annotations

import asyncio
import math
import os
import re
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, TypeVar

import typer

from cli.backup.command import hold_catalog
from cli.options import Documents, GatewayUrl, Json, read_settings
from cli.output import (
    CommandError,
    ExitCode,
    count_words,
    one_line,
    open_work_bar,
    print_error,
    print_json,
    print_line,
    print_table,
    time_words,
)

if TYPE_CHECKING:
    from cli.rag.client import FileToAdd, RagClient
    from cli.rag.ranking import Question, WayResult
    from cli.rag.transferring import Exported, Imported


Result = TypeVar("Result")

Tenant: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--tenant",
        metavar="NAME",
        help="Whose documents, while no keys are declared; default: `default`. With keys, ROUNDHOUSE_KEY decides.",
    ),
]


def ask_gateway(gateway: str | None, tenant: str | None, work: Callable[[RagClient], Awaitable[Result]]) -> Result:
    """Return what `work` returns, called with a client of the gateway. Blocks; no event loop may run in this thread.

    `gateway`: its address; None: as `find_gateway` finds it. `tenant`: whose documents, while the gateway has no keys;
    None: the tenant `default`. Raises what `work` raises, and CommandError where a setting is wrong.
    """
    from cli.gateway_client import find_gateway  # aiohttp takes 150 ms
    from cli.rag.client import RagClient

    async def run() -> Result:
        async with RagClient(await find_gateway(gateway, None), tenant) as client:
            return await work(client)

    return asyncio.run(run())


def export_file(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Path of the archive (.tar) to write. An existing file is replaced.")
    ],
    gateway: GatewayUrl = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Write the documents of the tenant into one file: originals, ids, names, attributes, chunking.

    FILE has its name when it is complete. Until then it is FILE.partial; after a broken run, the same command goes on
    with it. Vector stores and files of OpenAI's API are not in it; `rag backup` has everything. Exit code 1: the export
    could not be completed. 3: no gateway answers.
    """
    from cli.rag.transferring import export_documents

    async def run(client: RagClient) -> Exported:
        with open_work_bar("documents", None) as bar:
            return await export_documents(client, file, lambda document: bar.advance(1, document))

    if file.is_dir():
        raise CommandError(f"{file} is a folder", ExitCode.USAGE)
    exported = ask_gateway(gateway, tenant, run)
    if as_json:
        print_json({"file": str(file), "bytes": file.stat().st_size, **asdict(exported)})
    else:
        size_mib = file.stat().st_size / 1024**2
        print_line(f"{file}: {count_words(exported.documents, 'document')} of {exported.tenant}, {size_mib:.1f} MiB")
    return ExitCode.DONE


def import_file(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Path of a file that `roundhouse rag export` wrote.")],
    gateway: GatewayUrl = None,
    tenant: Tenant = None,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Return when all documents are accepted, before they are searchable.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Add the documents of a file, under their ids. What the tenant has already, with the same content, is left out.

    Exit code 0: all documents are searchable (or accepted, with --no-wait). 1: some were refused, or the file is
    damaged; what was accepted stays. 3: no gateway answers.
    """
    from cli.rag.transferring import ExportReader, import_documents

    with ExportReader(file) as reader:
        total = sum(1 for _ in reader.read_documents())

        async def run(client: RagClient) -> Imported:
            with open_work_bar("documents", total if no_wait else 2 * total) as bar:
                return await import_documents(
                    client, reader, waits=not no_wait, on_document=lambda document: bar.advance(1, document)
                )

        imported = ask_gateway(gateway, tenant, run)
    for document_id, reason in imported.failed:
        print_error(f"{document_id}: {reason}")
    if as_json:
        failed = [{"id": document_id, "reason": reason} for document_id, reason in imported.failed]
        counts = {"documents": total, "added": imported.added, "unchanged": imported.unchanged}
        print_json({"file": str(file), **counts, "failed": failed})
    else:
        words = f"{imported.added} added, {imported.unchanged} there already, {len(imported.failed)} failed"
        print_line(f"{file}: {count_words(total, 'document')}, {words}")
    return ExitCode.FAILED if imported.failed else ExitCode.DONE


def evaluate(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help='JSON lines: {"query": "...", "relevant": ["document id"]}, or grades: {"id": 2}.'
        ),
    ],
    gateway: GatewayUrl = None,
    tenant: Tenant = None,
    top_k: Annotated[
        int, typer.Option("--top-k", min=10, max=100, metavar="N", help="Hits of each search; several may be of one.")
    ] = 50,
    report: Annotated[
        Path | None,
        typer.Option("--report", metavar="FILE", help="Write a report: JSON if its name ends in .json, else Markdown."),
    ] = None,
    as_json: Json = False,
) -> int:
    """Measure searches by questions whose documents are known: recall@5, MRR and nDCG@10.

    Searches by words, by meaning, by both, and reranked; for what the gateway cannot do, stderr has the reason. Exit
    code 0: something was measured. 1: nothing could be. 3: no gateway answers. 64: FILE cannot be read, or holds no
    question.
    """
    from cli.rag.client import WAYS, evaluate_ways, find_unknown_documents, parse_questions
    from cli.rag.ranking import COLUMNS, build_result, table_rows

    questions = parse_questions(_read_text(file).split("\n"), str(file))

    async def run(client: RagClient) -> tuple[list[str], list[WayResult]]:
        unknown = await find_unknown_documents(client, questions)
        with open_work_bar("questions", len(questions) * len(WAYS)) as bar:
            return unknown, await evaluate_ways(
                client, questions, top_k=top_k, on_answer=lambda name, _: bar.advance(1, name)
            )

    unknown, results = ask_gateway(gateway, tenant, run)
    _print_warnings(unknown, results)
    summary = build_result(file.name, questions, results, unknown, top_k)
    if report is not None:
        _write_report(report, summary, questions, results)
    if as_json:
        print_json(summary)
    else:
        print_table(COLUMNS, table_rows(results))
    return ExitCode.DONE if any(result.scores for result in results) else ExitCode.FAILED


def _print_warnings(unknown: list[str], results: list[WayResult]) -> None:
    for result in results:
        if result.reason is not None:
            print_error(f"{result.name}: {result.reason}")
        if not result.is_complete:
            print_error(f"{result.name}: an index is being rebuilt, so documents may be missing")
    if unknown:
        words = count_words(len(unknown), "document")
        print_error(f"{words} of the questions are not there, so no search finds them: {', '.join(unknown[:5])}")


def _write_report(path: Path, summary: dict[str, Any], questions: list[Question], results: list[WayResult]) -> None:
    from cli.rag.ranking import render_json, render_markdown

    render = render_json if path.suffix == ".json" else render_markdown
    try:
        path.write_text(render(summary, questions, results, time_words(time.time())), encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror or error}") from None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise CommandError(f"{path} cannot be read: {reason or error}", ExitCode.USAGE) from None


def back_up_documents(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Path of the archive (.tar.gz) to write. An existing file is replaced."),
    ],
    documents: Documents = None,
    as_json: Json = False,
) -> int:
    """Write the documents, files and vector stores of all tenants into one file, while Roundhouse runs or not.

    `roundhouse backup` has them, too. Vectors are left out: they are made again. An existing FILE stays as it is until
    the new one is complete. Exit code 1: there are no documents, or something cannot be read or written.
    """
    from cli.backup.manifest import BackupError
    from cli.backup.snapshot import write_documents_backup

    folder = documents or read_settings().state
    try:
        with open_work_bar("originals", None) as bar:
            manifest = write_documents_backup(file, folder, time.time(), lambda: bar.advance(1))
    except BackupError as error:
        raise CommandError(str(error)) from None
    assert manifest.documents is not None
    if as_json:
        print_json({"file": str(file), "manifest": manifest.model_dump()})
    else:
        size_mib = file.stat().st_size / 1024**2
        words = count_words(manifest.documents.originals, "original")
        print_line(f"{file}: the catalog and {words} of {folder}, {size_mib:.1f} MiB")
    return ExitCode.DONE


def restore_backup(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="Path of an archive that `roundhouse rag backup` or `roundhouse backup` wrote."
        ),
    ],
    documents: Documents = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace existing documents. They are kept as `retrieval.before-restore`."),
    ] = False,
    as_json: Json = False,
) -> int:
    """Restore the documents of a backup, and nothing else of it. No retrieval program may run.

    The whole backup is read and verified first. Vectors are made again at the next start. Exit code 1: the backup
    cannot be restored, or there are documents already and --force is not given. 4: a retrieval program or `up` uses the
    folder.
    """
    from cli.backup.manifest import BackupError
    from cli.backup.restoring import OccupiedError, restore_documents
    from cli.backup.snapshot import verify_archive

    state = read_settings().state
    folder = documents or state
    try:
        with file.open("rb") as archive:
            manifest = verify_archive(archive)
            with _hold_documents(folder, is_own_state=folder == state):
                restored = restore_documents(archive, manifest, folder, force=force)
    except OccupiedError as error:
        raise CommandError(f"{error}; --force replaces them, and keeps them beside") from None
    except BackupError as error:
        raise CommandError(f"{file} cannot be restored: {error}; nothing was changed") from None
    except OSError as error:
        raise CommandError(f"{error.filename or file}: {error.strerror or error}; the restore is not done") from None
    assert manifest.documents is not None, "restore_documents has raised"
    if as_json:
        counts = {"documents": restored.documents, "originals": manifest.documents.originals}
        kept = [str(path) for path in restored.aside_files]
        print_json({"file": str(file), "made_at": manifest.made_at, **counts, "kept": kept})
    else:
        words = count_words(restored.documents or 0, "document")
        print_line(f"{file}: {words} restored, as of {time_words(manifest.made_at)}")
        for aside in restored.aside_files:
            print_line(f"kept: {aside}")
    return ExitCode.DONE


@contextmanager
def _hold_documents(folder: Path, *, is_own_state: bool) -> Iterator[None]:
    """Lock a state folder of retrieval against retrieval, and against the `up` that would start it. Raises CommandError
    (LOCKED) where one of them runs."""
    from cli.up.supervisor import lock_state

    descriptors = [lock_state(folder)] if is_own_state else []
    try:
        descriptors += hold_catalog(folder)
        yield
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


rag = typer.Typer(name="rag", help="Keep documents, and search them.", no_args_is_help=True, rich_markup_mode=None)
rag.command("export")(export_file)
rag.command("import")(import_file)
rag.command("eval")(evaluate)
rag.command("backup")(back_up_documents)
rag.command("restore")(restore_backup)

_NUMBER: Final = re.compile(r"-?(0|[1-9]\d{0,17})(\.\d+)?([eE][+-]?\d+)?")
"""A number as JSON writes it. `0123` and `1_000` are texts."""
DocumentId: TypeAlias = Annotated[str, typer.Argument(metavar="ID", help="Id of the document.")]


@rag.command()
def add(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Files and folders.")],
    gateway: GatewayUrl = None,
    tenant: Tenant = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="An attribute for filters; may be given several times."),
    ] = None,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Return when all files are accepted, before they are searchable.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on: add what changes, delete what vanishes, until Ctrl-C.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Add files, or replace them where they have changed.

    A document's id is the file's path as first given, with `:` between its parts, and its attribute `path` is that
    path; of an absolute one only what is below the added folder, with its name. The attribute `added_from` is a digest
    of where the file lies: documents of another folder are not replaced, unless --set gives a name for it.

    Exit code 0: all files are searchable (or accepted, with --no-wait). 1: some were refused, or could not be read. 3:
    no gateway answers, or it no longer does.
    """
    from cli.rag.client import ORIGIN, AddedFiles, add_files, find_files, follow_files, keep_ids

    attributes = parse_attributes(metadata or ())
    began_at = time.time()
    files = find_files(paths)

    codes = [ExitCode.DONE]

    def tell(file: FileToAdd, result: dict[str, Any] | CommandError) -> None:
        if isinstance(result, CommandError):
            codes.append(result.code)
            print_error(f"{file.path}: {result}")
        elif as_json:
            print_json(result)
        else:
            chunks = "" if result["chunks"] is None else f", {result['chunks']} chunks"
            print_line(f"{file.path}: {result['status']} as {result['id']}{chunks}")

    async def run(client: RagClient) -> None:
        known_files = files if ORIGIN in attributes else await keep_ids(client, files)
        await add_files(client, known_files, attributes, waits=not no_wait, on_result=tell)
        if watch:
            await follow_files(client, paths, attributes, AddedFiles(known_files, began_at), tell)

    ask_gateway(gateway, tenant, run)
    return max(codes)


@rag.command()
def search(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What is looked for.")],
    gateway: GatewayUrl = None,
    tenant: Tenant = None,
    top_k: Annotated[int, typer.Option("--top-k", min=1, max=100, metavar="N", help="Most hits.")] = 5,
    mode: Annotated[
        str | None, typer.Option("--mode", metavar="dense|sparse|hybrid", help="By meaning, by words, or both.")
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="KEY=VALUE", help="Only documents with this attribute; may be repeated."),
    ] = None,
    rerank: Annotated[bool, typer.Option("--rerank", help="Order the best hits by the rerank model.")] = False,
    as_json: Json = False,
) -> int:
    """Search the tenant's documents, without those of vector stores.

    A hit must have all attributes of --where. Without --mode, the gateway searches by meaning and by words if it has an
    embedding model, else by words alone. Exit code 0: there are hits. 1: there are none, or the search was refused. 3:
    no gateway answers.
    """
    body: dict[str, Any] = {"query": query, "top_k": top_k, "rerank": rerank}
    if mode is not None:
        body["mode"] = mode
    if metadata:
        body["filter"] = parse_attributes(metadata)
    result = ask_gateway(gateway, tenant, lambda client: client.search(body))
    if as_json:
        print_json(result)
    else:
        for hit in result["data"]:
            place = hit["filename"] or hit["document_id"]
            page = f", page {hit['page']}" if hit["page"] is not None else ""
            print_line(
                f"{hit['score']:.3f}  {place}{page}, bytes {hit['start']} to {hit['end']} of {hit['document_id']}"
            )
            print_line(f"       {one_line(hit['text'])[:300]}")
        if result.get("notice") is not None:
            print_line(result["notice"])
    return ExitCode.DONE if result["data"] else ExitCode.FAILED


@rag.command("ls")
def list_documents(gateway: GatewayUrl = None, tenant: Tenant = None, as_json: Json = False) -> int:
    """List the documents of the tenant, with name, status, size and, where one failed, the reason. Exit code 1: the
    gateway refuses. 3: no gateway answers."""

    async def run(client: RagClient) -> list[dict[str, Any]]:
        return [document async for document in client.list_documents()]

    documents = ask_gateway(gateway, tenant, run)
    if as_json:
        print_json(documents)
    else:
        rows = [
            (
                each["id"],
                each.get("filename") or "",
                each["status"],
                str(each["chunks"] or ""),
                str(each["bytes"]),
                _error_of(each),
            )
            for each in documents
        ]
        print_table(("ID", "NAME", "STATUS", "CHUNKS", "BYTES", "ERROR"), rows)
    return ExitCode.DONE


@rag.command()
def show(document_id: DocumentId, gateway: GatewayUrl = None, tenant: Tenant = None, as_json: Json = False) -> int:
    """Show a document, and the chunks that were made of it. Exit code 1: there is none with this id. 3: no gateway
    answers."""

    async def run(client: RagClient) -> dict[str, Any]:
        document = await client.get_document(document_id)
        return {**document, "chunk_list": [chunk async for chunk in client.list_chunks(document_id)]}

    document = ask_gateway(gateway, tenant, run)
    if as_json:
        print_json(document)
        return ExitCode.DONE
    print_line(f"{document['id']}: {document['status']}, {document['media_type']}, {document['bytes']} bytes")
    if document["error"] is not None:
        print_line(document["error"]["message"])
    if document.get("notice") is not None:
        print_line(document["notice"])
    for chunk in document["chunk_list"]:
        page = f" page {chunk['page']}" if chunk["page"] is not None else ""
        headings = " > ".join(chunk["headings"])
        print_line(f"\n#{chunk['index']} bytes {chunk['start']} to {chunk['end']}{page}  {headings}")
        print_line(chunk["text"])
    return ExitCode.DONE


@rag.command("rm")
def remove(
    document_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of documents.")],
    gateway: GatewayUrl = None,
    tenant: Tenant = None,
) -> int:
    """Delete documents by their ids. The first one that does not exist ends the command with exit code 1; those before
    it are deleted. Exit code 3: no gateway answers."""

    async def run(client: RagClient) -> None:
        for document_id in document_ids:
            await client.delete_document(document_id)
            print_line(f"deleted {document_id}")

    ask_gateway(gateway, tenant, run)
    return ExitCode.DONE


@rag.command("tenants")
def list_tenants(gateway: GatewayUrl = None, as_json: Json = False) -> int:
    """List the tenants that have documents, with numbers and sizes: all, or where keys are declared and ROUNDHOUSE_KEY
    has no scope admin, its own. Exit code 1: the gateway refuses. 3: no gateway answers."""
    tenants = ask_gateway(gateway, None, lambda client: client.list_tenants())
    if as_json:
        print_json(tenants)
    else:
        rows = [(each["id"], *(str(each[name]) for name in ("documents", "chunks", "bytes"))) for each in tenants]
        print_table(("TENANT", "DOCUMENTS", "CHUNKS", "BYTES"), rows)
    return ExitCode.DONE


@rag.command("move")
def move_documents(
    source: Annotated[str, typer.Argument(metavar="TENANT", help="Whose documents are moved.")],
    gateway: GatewayUrl = None,
    target: Annotated[str, typer.Option("--to", metavar="NAME", help="The tenant that gets them.")] = "default",
) -> int:
    """Move the documents of a tenant to another one, under their ids, while no keys are declared.

    Each is searchable there before it is deleted here, so a broken move loses nothing, and the same command goes on.
    Where the other tenant has another document of an id, nothing is moved. What cannot be indexed stays, and so do
    files and vector stores. Exit code 1: something was not moved. 3: no gateway answers.
    """
    from cli.rag.transferring import ExportReader, add_moved, delete_moved, export_of

    if source == target:
        raise CommandError(f"{source} has its documents already", ExitCode.USAGE)
    with tempfile.TemporaryDirectory(prefix="roundhouse-move-") as folder:
        file = Path(folder) / "documents.tar"
        count = ask_gateway(gateway, source, lambda client: export_of(client, source, file))
        if not count:
            raise CommandError(f"the tenant {source} has no documents; `roundhouse rag tenants` lists who has")
        with ExportReader(file) as reader, open_work_bar("documents", 2 * count) as bar:
            failed = ask_gateway(
                gateway, target, lambda client: add_moved(client, target, reader, lambda _: bar.advance(1))
            )
            moved = ask_gateway(gateway, source, lambda client: delete_moved(client, reader, failed))
    for document_id, reason in failed.items():
        print_error(f"{document_id}: {reason}")
    print_line(f"{count_words(moved, 'document')} of {source} moved to {target}")
    return ExitCode.DONE if moved == count else ExitCode.FAILED


@rag.command("status")
def show_status(gateway: GatewayUrl = None, as_json: Json = False) -> int:
    """Show which index serves, and whether another one is being made. Where keys are declared, ROUNDHOUSE_KEY must hold
    one of scope admin. Exit code 1: the gateway refuses. 3: no gateway answers."""
    status = ask_gateway(gateway, None, lambda client: client.get_status())
    if as_json:
        print_json(status)
    else:
        for line in status_lines(status):
            print_line(line)
    return ExitCode.DONE


@rag.command()
def reindex(gateway: GatewayUrl = None, as_json: Json = False) -> int:
    """Make new vectors of all documents, with the embedding model that is set.

    Returns at once; `roundhouse rag status` shows how far it is. Searches use the old index until the new one has
    everything. Where keys are declared, ROUNDHOUSE_KEY must hold one of scope admin. Exit code 1: the gateway refuses.
    3: no gateway answers.
    """
    status = ask_gateway(gateway, None, lambda client: client.start_reindex())
    if as_json:
        print_json(status)
    else:
        print_line("a reindex is under way; `roundhouse rag status` shows how far it is")
    return ExitCode.DONE


def parse_attributes(texts: Sequence[str]) -> dict[str, Any]:
    """Return the attributes that texts of the form `KEY=VALUE` name. A value that is a finite number as JSON writes it,
    with at most 18 digits before the point, becomes a number; `true` and `false` become booleans; every other value
    is a string, also `0123`. If a key repeats, its last value counts. Raises CommandError (USAGE) for a text without
    `=` or without a key."""
    attributes: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise CommandError(f"{text!r} must be KEY=VALUE", ExitCode.USAGE)
        attributes[key] = _scalar_of(value)
    return attributes


def status_lines(status: dict[str, Any]) -> list[str]:
    """Return the answer of `/v1/retrieval` as lines of text for a person, without line ends."""
    lines = [f"vector store: {status['vector_store']}"]
    for name in ("index", "building"):
        if (index := status[name]) is not None:
            model = index["embedding_model"] or "words alone"
            words = f"{model}, words in {index['language']}"
            lines.append(f"{name}: {index['name']} ({words}), {index['missing_documents']} documents are missing in it")
    if status["needs_reindex"] and status["building"] is None:
        wanted = f"{status['embedding_model'] or 'no model'}, {status['language']}"
        lines.append(f"set is {wanted}: `roundhouse rag reindex` makes it so")
    if status["reindex_error"] is not None:
        lines.append(f"the reindex is tried again: {status['reindex_error']}")
    if status.get("clock_hold") is not None:
        lines.append(f"clock: {status['clock_hold']}")
    states = ", ".join(f"{count} {state}" for state, count in sorted(status["versions"].items()))
    return [*lines, f"documents: {states or 'none'}"]


def _scalar_of(text: str) -> str | int | float | bool:
    if text in ("true", "false"):
        return text == "true"
    if not _NUMBER.fullmatch(text):
        return text
    number = float(text)
    if not math.isfinite(number):
        return text
    return number if any(letter in text for letter in ".eE") else int(text)


def _error_of(document: dict[str, Any]) -> str:
    words = document.get("notice") if document["error"] is None else document["error"]["message"]
    return one_line(words or "")[:80]
