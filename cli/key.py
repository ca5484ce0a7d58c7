"""`roundhouse key`: make keys, list them, revoke them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.options import (
    ControllerUrl,
    EvenLast,
    Json,
    State,
    controller_url,
    key_scopes,
    model_names,
    service_tiers,
    tool_names,
)
from cli.output import CommandError, ExitCode, print_error, print_json, print_line, print_table, time_words

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cli.admin_client import AdminClient
    from contract.declarations import DeclarationsView, DeclarationView
    from contract.status import ControllerStatus

SECRET_BYTES = 32
_OWN_KEY = (
    "with the first key, every request needs one, yours and the page's too; a key that does all and has what was there "
    "before: `roundhouse key new me --scope inference --scope admin --tenant default`"
)

key = typer.Typer(name="key", help="Make, list and revoke API keys of the gateway.")


@key.callback()
def _group() -> None:
    """Make, list and revoke API keys of the gateway."""


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
    else:
        print_line(_lines(name, fields))
        print_error("its lines, on stdout, belong into a file of the desired state; they may be committed")
    if "admin" not in (scope or ()):
        print_error(_OWN_KEY)
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


@key.command("ls")
def list_keys(controller: ControllerUrl = None, state: State = None, as_json: Json = False) -> int:
    """List the keys, whether they are in force, when they were last used, and where they are declared.

    LAST USE is `unknown` while no gateway has reported it. WHERE is a file and a line, or who declared the key at run
    time. Exit code 3: no controller answers.
    """
    from cli.admin_client import ask_admin  # aiohttp takes 150 ms

    async def ask(client: AdminClient) -> tuple[ControllerStatus, DeclarationsView]:
        return await client.get_status(), await client.list_declarations()

    status, declared = ask_admin(controller_url(controller, state), ask)
    states = dict.fromkeys(status.keys, "in force") | dict.fromkeys(status.expired_keys, "expired")
    used = status.keys_used
    if as_json:
        rows = [{"name": name, "state": state, "where": _where(declared, name)} for name, state in states.items()]
        print_json(rows if used is None else [{**row, "last_used": used.get(row["name"])} for row in rows])
    elif states:
        now = time.time()
        table = [(name, state, _last_use(used, name, now), _where(declared, name)) for name, state in states.items()]
        print_table(("KEY", "STATE", "LAST USE", "WHERE"), sorted(table))
    else:
        print_line("no keys are declared; `roundhouse key new NAME` makes one")
    return ExitCode.DONE


@key.command()
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the key.")],
    even_last: EvenLast = False,
    controller: ControllerUrl = None,
    state: State = None,
    as_json: Json = False,
) -> int:
    """Revoke a key that was declared at run time: new and waiting requests with it are refused at once.

    Of a key in the files, says in which file and line it stands, and changes nothing. Exit code 1: the key is in the
    files, there is none of this name, or it is the last one. 3: no controller answers.
    """
    from cli.admin_client import ask_admin  # aiohttp takes 150 ms
    from controller.config.messages import suggest_name

    async def ask(client: AdminClient) -> DeclarationView:
        declared = await client.list_declarations()
        if name in declared.keys:
            return await client.drop_declaration("keys", name, even_last=even_last)
        if (place := declared.places.get(f"keys.{name}")) is not None:
            raise CommandError(
                f"the key {name} is declared in {place}: remove its lines there, which revokes it at once"
            )
        status = await client.get_status()
        if name in (*status.keys, *status.expired_keys):
            raise CommandError(
                f"the key {name} is in force, from files that cannot be read now: `roundhouse status` says why"
            )
        names = [*declared.keys, *(each.removeprefix("keys.") for each in declared.places if each.startswith("keys."))]
        raise CommandError(f"no key is named {name}{suggest_name(name, names)}")

    view = ask_admin(controller_url(controller, state), ask)
    if as_json:
        print_json(view)
    else:
        print_line(f"key {name}: revoked")
    return ExitCode.DONE


def _last_use(keys_used: Mapping[str, float] | None, name: str, now: float) -> str:
    """Return how long ago a key was last used, in words. `now`: Unix time in seconds."""
    if keys_used is None:
        return "unknown"
    if name not in keys_used:
        return "never seen"
    seconds = now - keys_used[name]
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:.0f} {unit} ago"
    return "just now"


def _where(declared: DeclarationsView, name: str) -> str:
    if (declaration := declared.keys.get(name)) is not None:
        return f"at run time, by {declaration.actor} on {time_words(declaration.declared_at)}"
    return declared.places.get(f"keys.{name}", "-")
