"""`roundhouse rag eval`: how well searches find what they should."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from controller.cli.exit_codes import CommandError, ExitCode
from controller.cli.options import Json
from controller.cli.output import count_words, print_error, print_json, print_table, time_words
from controller.cli.rag.gateway_options import Gateway, Tenant, ask_gateway
from controller.cli.work_bar import open_work_bar

if TYPE_CHECKING:
    from controller.cli.rag.client import RagClient
    from controller.cli.rag.evaluation import Question, WayResult


def evaluate(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help='JSON lines: {"query": "...", "relevant": ["document id"]}, or grades: {"id": 2}.'
        ),
    ],
    gateway: Gateway = None,
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
    from controller.cli.rag.evaluation import WAYS, evaluate_ways, find_unknown_documents, parse_questions
    from controller.cli.rag.evaluation_report import COLUMNS, build_result, table_rows

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
    from controller.cli.rag.evaluation_report import render_json, render_markdown

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
