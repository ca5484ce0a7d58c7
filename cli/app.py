"""The command line application. Each command is a module of its own, and imports heavy libraries only when it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import typer
from typer.exceptions import Abort, TyperException

from cli import chat, doctor, history, key, load, plan, pull, status, top, upgrade
from cli.backup import command as backup
from cli.bench import command as bench
from cli.output import CommandError, ExitCode, HelpGroup, print_error
from cli.rag import command as rag
from cli.up import command as up

app = typer.Typer(
    name="roundhouse",
    cls=HelpGroup,
    help="Serve language models behind one OpenAI-compatible address.",
    epilog="Exit codes: " + " ".join(f"{code.value} {code.name.lower()}." for code in ExitCode) + " See docs/cli.md.",
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
_SECTIONS: Final[Mapping[str, Sequence[Callable[..., object] | typer.Typer]]] = {
    "Serve": (
        up.up,
        up.down,
        up.head,
        up.join,
        up.leave,
        pull.serve,
        chat.chat,
        chat.run,
        load.load,
        load.unload,
        load.reset,
        load.pause,
        load.resume,
        load.drain,
        load.undrain,
    ),
    "Watch": (
        *(status.status, top.top, status.gpu, status.hosts, history.events, history.history, history.logs),
        *(plan.plan, status.drift, doctor.doctor, bench.bench),
    ),
    "Models": (pull.search, pull.pull, status.models, status.rm, plan.validate, plan.schema, plan.declarations),
    "Documents": (rag.rag,),
    "Service": (key.key, up.service, backup.backup, backup.restore, upgrade.upgrade, upgrade.version),
}
for _section, _commands in _SECTIONS.items():
    for _command in _commands:
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, cls=HelpGroup, rich_help_panel=_section)
        else:
            app.command(rich_help_panel=_section)(_command)


def run(arguments: Sequence[str]) -> int:
    """Run one command line, without the program's name, and return its exit code; an empty one shows the help. Every
    error that an operator can cause is one line on stderr; other exceptions pass."""
    try:
        code = app(args=list(arguments) or ["--help"], prog_name="roundhouse", standalone_mode=False)
    except CommandError as error:
        print_error(str(error))
        return error.code
    except TyperException as error:
        print_error(error.format_message())
        return ExitCode.USAGE
    except (Abort, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader of stdout has gone (`roundhouse status | head`), so nothing more can be printed.
        return ExitCode.FAILED
    return int(code or 0)
