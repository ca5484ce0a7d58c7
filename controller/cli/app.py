"""The command line application. Each command is a module of its own, and imports heavy libraries only when it runs."""

from __future__ import annotations

from collections.abc import Sequence

import typer
from typer.exceptions import Abort, TyperException

from controller.cli import (
    backup,
    declarations,
    down,
    drift,
    events,
    gpu,
    history,
    key,
    load,
    logs,
    models,
    pause,
    plan,
    reset,
    restore,
    schema,
    status,
    unload,
    upgrade,
    validate,
    version,
)
from controller.cli.bench import command as bench
from controller.cli.doctor import command as doctor
from controller.cli.exit_codes import CommandError, ExitCode
from controller.cli.output import print_error
from controller.cli.pull import command as pull
from controller.cli.rag import command as rag
from controller.cli.service import command as service
from controller.cli.top import command as top
from controller.cli.up import command as up

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
    down.down,
    status.status,
    top.top,
    load.load,
    unload.unload,
    reset.reset,
    plan.plan,
    drift.drift,
    events.events,
    history.history,
    logs.logs,
    pull.pull,
    models.models,
    models.rm,
    gpu.gpu,
    validate.validate,
    doctor.doctor,
    bench.bench,
    pause.pause,
    pause.resume,
    backup.backup,
    restore.restore,
    upgrade.upgrade,
    schema.schema,
    version.version,
):
    app.command()(command)
app.add_typer(key.key)
app.add_typer(declarations.declarations)
app.add_typer(rag.rag)
app.add_typer(service.service)


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
