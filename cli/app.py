"""The command line application. Each command is a module of its own, and imports heavy libraries only when it runs."""

from __future__ import annotations

from collections.abc import Sequence

import typer
from typer.exceptions import Abort, TyperException

from cli import doctor, history, key, load, plan, pull, status, top, upgrade
from cli.backup import command as backup
from cli.bench import command as bench
from cli.output import CommandError, ExitCode, print_error
from cli.rag import command as rag
from cli.up import command as up

app = typer.Typer(
    name="roundhouse",
    help="Serve language models that are declared in files, behind one OpenAI-compatible address.",
    epilog="Exit codes: " + " ".join(f"{code.value} {code.name.lower()}." for code in ExitCode) + " See docs/cli.md.",
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for command in (
    up.up,
    up.down,
    status.status,
    top.top,
    load.load,
    load.unload,
    load.reset,
    plan.plan,
    status.drift,
    history.events,
    history.history,
    history.logs,
    pull.pull,
    status.models,
    status.rm,
    status.gpu,
    plan.validate,
    doctor.doctor,
    bench.bench,
    load.pause,
    load.resume,
    backup.backup,
    backup.restore,
    upgrade.upgrade,
    plan.schema,
    upgrade.version,
):
    app.command()(command)
app.add_typer(key.key)
app.add_typer(plan.declarations)
app.add_typer(rag.rag)
app.add_typer(up.service)


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
