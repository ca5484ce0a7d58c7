"""`roundhouse rag export` and `roundhouse rag import`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli.exit_codes import CommandError, ExitCode
from controller.cli.options import Json
from controller.cli.output import count_words, print_error, print_json, print_line
from controller.cli.rag.gateway_options import Gateway, Tenant, ask_gateway
from controller.cli.work_bar import open_work_bar

if TYPE_CHECKING:
    from controller.cli.rag.client import RagClient
    from controller.cli.rag.transferring import Exported, Imported


def export_file(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Path of the archive (.tar) to write. An existing file is replaced.")
    ],
    gateway: Gateway = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> int:
    """Write the documents of the tenant into one file: originals, ids, names, attributes, chunking.

    FILE has its name when it is complete. Until then it is FILE.partial; after a broken run, the same command goes on
    with it. Vector stores and files of OpenAI's API are not in it; `rag backup` has everything. Exit code 1: the export
    could not be completed. 3: no gateway answers.
    """
    from controller.cli.rag.transferring import export_documents

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
    gateway: Gateway = None,
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
    from controller.cli.rag.export_file import ExportReader
    from controller.cli.rag.transferring import import_documents

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
