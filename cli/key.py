"""`roundhouse key`: make keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.options import ControllerUrl, Json, State, controller_url, key_scopes, model_names, service_tiers, tool_names
from cli.output import CommandError, ExitCode, print_error, print_json, print_line

if TYPE_CHECKING:
    from collections.abc import Mapping

SECRET_BYTES = 32

key = typer.Typer(name="key", help="Make API keys of the gateway.")


@key.callback()
def _group() -> None:
    """Make API keys of the gateway."""


@key.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the key in logs, headers and metrics.")],
    scope: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            metavar="SCOPE",
            help="Scope of the key: inference or admin; may be repeated. Default: inference.",
            autocompletion=key_scopes,
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="NAME",
            help="Name of a model that the key may use; `*` stands for any text; may be repeated. Default: all models.",
            autocompletion=model_names,
        ),
    ] = None,
    tool: Annotated[
        list[str] | None,
        typer.Option(
            "--tool",
            metavar="NAME",
            help="Name of a tool that the key may call; `*` stands for any text; may be repeated. Default: none.",
            autocompletion=tool_names,
        ),
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option(
            "--tenant", metavar="NAME", help="Name of the tenant that the key belongs to. Default: the key's own name."
        ),
    ] = None,
    weight: Annotated[
        float | None,
        typer.Option(
            "--weight",
            metavar="NUMBER",
            help="Share of the tenant in a busy model, relative to the weights of other tenants. Default: 1.",
        ),
    ] = None,
    rpm: Annotated[
        int | None, typer.Option("--rpm", metavar="NUMBER", help="Maximum requests per minute. Default: no limit.")
    ] = None,
    tpm: Annotated[
        int | None,
        typer.Option(
            "--tpm", metavar="NUMBER", help="Maximum tokens per minute, prompt and answer together. Default: no limit."
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency",
            metavar="NUMBER",
            help="Maximum requests at a time, including waiting ones. Default: no limit.",
        ),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(
            "--expires",
            metavar="DATE",
            help="When the key expires: its last day (UTC), or a time (ISO 8601). Default: never.",
        ),
    ] = None,
    tier: Annotated[
        list[str] | None,
        typer.Option(
            "--tier",
            metavar="TIER",
            help="Service tier that requests with the key may use: priority, default or flex; may be repeated. "
            "Default: default and flex.",
            autocompletion=service_tiers,
        ),
    ] = None,
    is_declared: Annotated[
        bool,
        typer.Option("--declare", help="Declare the key at run time: it rules at once, and over restarts."),
    ] = False,
    controller: ControllerUrl = None,
    state: State = None,
    as_json: Json = False,
) -> int:
    """Make a key.

    Prints the key's lines for the desired-state files to stdout, and its secret to stderr, once. Nothing is stored,
    except with --declare. Exit code 64: an option is wrong. With --declare, 1: the files declare the name; 3: no
    controller answers.
    """
    import secrets
    from hashlib import sha256

    from controller.config.validate import SECRET_PREFIX  # pydantic takes 100 ms

    secret = SECRET_PREFIX + secrets.token_urlsafe(SECRET_BYTES)
    options: dict[str, Any] = {
        "sha256": sha256(secret.encode()).hexdigest(),
        "scopes": scope,
        "models": model,
        "tools": tool,
        "tenant": tenant,
        "weight": weight,
        "service_tiers": tier,
        "requests_per_minute": rpm,
        "tokens_per_minute": tpm,
        "concurrency": concurrency,
        "expires": expires,
    }
    fields = {field: value for field, value in options.items() if value not in (None, [])}
    _check(name, fields)
    if is_declared:
        from cli.admin_client import ask_admin  # aiohttp takes 150 ms

        ask_admin(controller_url(controller, state), lambda client: client.put_declaration("keys", name, fields))
    if as_json:
        print_json({"name": name, "secret": secret, "key": fields})
        return ExitCode.DONE
    print_error(f"the secret of {name}, which is shown this once: {secret}")
    if is_declared:
        print_line(f"key {name}: declared, and in force")
        return ExitCode.DONE
    print_line(_lines(name, fields))
    print_error("its lines, on stdout, belong into a file of the desired state; they may be committed")
    return ExitCode.DONE


def _check(name: str, fields: Mapping[str, Any]) -> None:
    """Validate the key as `roundhouse validate` would. Raises CommandError."""
    from controller.config.parse import redact_problems
    from controller.config.validate import validate_keys
    from controller.config.yaml12 import SourcePlace, Table, with_place

    table = with_place({"keys": {name: dict(fields)}}, SourcePlace("the command line"))
    assert isinstance(table, Table)
    problems = redact_problems(validate_keys(table).problems)
    if problems:
        raise CommandError("; ".join(f"{each.field}: {each.message}" for each in problems), ExitCode.USAGE)


def _lines(name: str, fields: Mapping[str, Any]) -> str:
    """Return the key as the text of a desired-state file."""
    lines = [f"    {field}: {_value(value)}" for field, value in fields.items()]
    return "\n".join(["keys:", f"  {_text(name)}:", *lines])


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_text(each) for each in value)}]"
    return _text(value) if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)


def _text(text: str) -> str:
    """Return a text as YAML, in quotes where it needs them."""
    import json
    import re

    from controller.config.yaml12 import resolve_scalar

    try:
        is_plain = resolve_scalar(text) == text and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._@-]*", text) is not None
    except ValueError:
        is_plain = False
    return text if is_plain else json.dumps(text)
