"""`roundhouse logs`: show logs of a model's engines."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Annotated

import typer

from controller.cli.exit_codes import ExitCode
from controller.cli.options import ControllerUrl, Follow, Json, ModelArgument, State
from controller.cli.output import print_error, print_json_line, print_piece
from controller.cli.settings import controller_url


def logs(
    name: ModelArgument,
    replica: Annotated[
        str | None,
        typer.Option(
            "--replica", metavar="R", help="Show the log of this replica only; `status --json` lists the names."
        ),
    ] = None,
    lines: Annotated[int, typer.Option("--lines", min=0, help="Number of last lines of each engine.")] = 100,
    follow: Follow = False,
    controller: ControllerUrl = None,
    state: State = None,
    as_json: Json = False,
) -> int:
    """Show the last log lines of a model's engines: of the running ones, or of the last one that ended where none runs.

    With --follow, also new lines, until Ctrl-C. With --json, one JSON object per line. Exit code 0: also where nothing
    was written yet. 1: there is no such model or replica. 3: no controller answers.
    """
    try:
        has_text = asyncio.run(_logs(controller_url(controller, state), name, replica, lines, follow, as_json))
    except KeyboardInterrupt:
        if not follow:
            return ExitCode.INTERRUPTED
        return ExitCode.DONE
    if lines and not has_text:
        subject_words = f"no engine of {name} has" if replica is None else f"{replica} has not"
        print_error(f"no log: {subject_words} written anything yet")
    return ExitCode.DONE


async def _logs(url: str, name: str, replica: str | None, lines: int, follow: bool, as_json: bool) -> bool:
    """Print the log. Returns whether there was any text."""
    from controller.cli.admin_client import AdminClient  # aiohttp takes 150 ms

    partial_line, has_text = "", False
    async with AdminClient(url) as client:
        pieces = client.read_logs(name, replica=replica, lines=lines, follow=follow)
        async with aclosing(pieces):
            try:
                async for piece in pieces:
                    has_text |= bool(piece)
                    if not as_json:
                        print_piece(piece)
                        continue
                    *full_lines, partial_line = (partial_line + piece).split("\n")
                    for line in full_lines:
                        print_json_line({"line": line})
            finally:  # Ctrl-C and a lost connection end the log within a line, too
                if partial_line:
                    print_json_line({"line": partial_line})
    return has_text
