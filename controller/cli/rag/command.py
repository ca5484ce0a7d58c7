"""`roundhouse rag`: documents and searches, through a gateway."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from controller.cli.exit_codes import CommandError, ExitCode
from controller.cli.options import Json
from controller.cli.output import one_line, print_error, print_json, print_line, print_table
from controller.cli.rag.backup import back_up_documents, restore_backup
from controller.cli.rag.evaluate import evaluate
from controller.cli.rag.gateway_options import Gateway, Tenant, ask_gateway
from controller.cli.rag.transfer import export_file, import_file

if TYPE_CHECKING:
    from controller.cli.rag.adding import FileToAdd
    from controller.cli.rag.client import RagClient

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
    gateway: Gateway = None,
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

    A document's id is the file's path as given, with `:` between its parts, and its attribute `path` is that path. Exit
    code 0: all files are searchable (or accepted, with --no-wait). 1: some were refused, or could not be read. 3: no
    gateway answers, or it no longer does.
    """
    from controller.cli.rag.adding import add_files, find_files
    from controller.cli.rag.watching import AddedFiles, follow_files

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
        await add_files(client, files, attributes, waits=not no_wait, on_result=tell)
        if watch:
            await follow_files(client, paths, attributes, AddedFiles(files, began_at), tell)

    ask_gateway(gateway, tenant, run)
    return max(codes)


@rag.command()
def search(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What is looked for.")],
    gateway: Gateway = None,
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
    return ExitCode.DONE if result["data"] else ExitCode.FAILED


@rag.command("ls")
def list_documents(gateway: Gateway = None, tenant: Tenant = None, as_json: Json = False) -> int:
    """List the documents of the tenant, with status, size and, where one failed, the reason. Exit code 1: the gateway
    refuses. 3: no gateway answers."""

    async def run(client: RagClient) -> list[dict[str, Any]]:
        return [document async for document in client.list_documents()]

    documents = ask_gateway(gateway, tenant, run)
    if as_json:
        print_json(documents)
    else:
        rows = [
            (each["id"], each["status"], str(each["chunks"] or ""), str(each["bytes"]), _error_of(each))
            for each in documents
        ]
        print_table(("ID", "STATUS", "CHUNKS", "BYTES", "ERROR"), rows)
    return ExitCode.DONE


@rag.command()
def show(document_id: DocumentId, gateway: Gateway = None, tenant: Tenant = None, as_json: Json = False) -> int:
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
    gateway: Gateway = None,
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


@rag.command("status")
def show_status(gateway: Gateway = None, as_json: Json = False) -> int:
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
def reindex(gateway: Gateway = None, as_json: Json = False) -> int:
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
    if status["needs_reindex"]:
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
