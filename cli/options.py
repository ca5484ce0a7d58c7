"""Options that several commands take, the settings that they override, and the completion of their values.

A completion that cannot ask the controller offers nothing and prints nothing.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_args

import typer

from cli.output import CommandError, ExitCode

if TYPE_CHECKING:
    from contract.admin import AdminModel
    from controller.settings import ControllerSettings


def read_settings(**options: Any) -> ControllerSettings:
    """Return the controller's settings. `options` (by the setting's name; None: not given) override the environment,
    which overrides the defaults. Raises CommandError (ExitCode.USAGE) where a setting is wrong."""
    from controller.settings import SettingsError, load_settings  # pydantic takes 100 ms

    try:
        return load_settings(**options)
    except SettingsError as error:
        raise CommandError(str(error), ExitCode.USAGE) from None


def controller_url(given_url: str | None, state: Path | None) -> str:
    """Return the address at which the controller is asked: `given_url` as the operator gave it, unchecked, else where
    the settings say that a controller with this state folder listens. Raises CommandError where a setting is wrong."""
    return given_url or read_settings(state=state).controller_url


def own_gateway_url(settings: ControllerSettings) -> str:
    """Return the URL of the gateway that `up` starts with these settings and this environment, for programs of this
    machine: https where it has a certificate. The port is 0 where the setting is 0, though the gateway then takes a
    free one. The certificate is for the names that clients use, not for this address, so do not verify it."""
    return settings.gateway_url(is_tls=bool(os.environ.get("ROUNDHOUSE_TLS_CERT")))


PATIENCE_S = 1.0
"""Seconds to wait for the controller, because the shell waits for the completion."""


def model_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of declared models that begin with `incomplete`, by the controller that the command line names,
    else by the one that the settings name. Empty where none answers within 1 s. Aliases are not offered."""
    return [row.name for row in _rows(ctx) if row.name.startswith(incomplete)]


def load_fields(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return `field=` for each field that a load of the named model may set and that begins with `incomplete`. Empty
    where the command line names no declared model yet, or no controller answers."""
    name = ctx.params.get("name") or next(iter(ctx.args), None)
    row = next((row for row in _rows(ctx) if name in (row.name, *row.aliases)), None)
    fields = row.load_constraints if row is not None else ()
    return [f"{field}=" for field in fields if field.startswith(incomplete)]


def _rows(ctx: typer.Context) -> list[AdminModel]:
    """Return the rows of all models. Empty where no controller answers."""
    import asyncio
    import os

    from cli.admin_client import AdminClient

    async def _ask(url: str) -> list[AdminModel]:
        async with AdminClient(url, PATIENCE_S) as client:
            return (await client.list_models()).models

    # Commands that do not ask the controller themselves have no parameter `controller`.
    url_option, state = (
        ctx.params.get("controller") or os.environ.get("ROUNDHOUSE_CONTROLLER_URL"),
        ctx.params.get("state"),
    )
    try:
        return asyncio.run(_ask(controller_url(url_option, Path(state) if state else None)))
    except CommandError:
        return []


def event_kinds(incomplete: str) -> list[str]:
    """Return the kinds of events that begin with `incomplete`; all of them for an empty text. Asks no controller."""
    from contract.journal import EventKind

    return [kind for kind in get_args(EventKind) if kind.startswith(incomplete)]


def key_scopes(incomplete: str) -> list[str]:
    """Return the scopes of API keys that begin with `incomplete`; all of them for an empty text."""
    from contract.keys import KeyScope

    return [scope for scope in get_args(KeyScope) if scope.startswith(incomplete)]


def tool_names(incomplete: str) -> list[str]:
    """Return the names of built-in tools that begin with `incomplete`; all of them for an empty text."""
    from contract.tools import BUILTIN_TOOLS

    return [name for name in BUILTIN_TOOLS if name.startswith(incomplete)]


def service_tiers(incomplete: str) -> list[str]:
    """Return the service tiers of API keys that begin with `incomplete`; all of them for an empty text."""
    from contract.keys import ServiceTier

    return [tier for tier in get_args(ServiceTier) if tier.startswith(incomplete)]


def checked_name(value: str | None) -> str | None:
    """Return a model's name as given, None included. Raises typer.BadParameter for an empty or blank one, most likely
    an unset shell variable. Whether the model exists is not checked."""
    if value is not None and not value.strip():
        raise typer.BadParameter("a model's name is not empty")
    return value


EvenLast: TypeAlias = Annotated[
    bool, typer.Option("--last", help="Also the last key, after which everybody may use the gateway.")
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Desired: TypeAlias = Annotated[
    Path | None, typer.Option("--desired", metavar="DIR", help="Folder of the desired-state files.")
]
State: TypeAlias = Annotated[
    Path | None, typer.Option("--state", metavar="DIR", help="State folder of the controller.")
]
Models: TypeAlias = Annotated[
    Path | None,
    typer.Option("--models", metavar="DIR", help="Folder with model files; several folders are separated by commas."),
]
Responses: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--responses", metavar="DIR", help="Folder of the gateway's `responses.db`; default: the state folder."
    ),
]
Documents: TypeAlias = Annotated[
    Path | None,
    typer.Option("--documents", metavar="DIR", help="State folder of retrieval; default: the controller's."),
]
NoDocuments: TypeAlias = Annotated[
    bool, typer.Option("--no-documents", help="Leave documents and searches out; `roundhouse rag` has its own backup.")
]
Runtime: TypeAlias = Annotated[
    str | None, typer.Option("--runtime", metavar="process|docker|auto", help="Where engines run.")
]
ControllerUrl: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--controller",
        metavar="URL",
        envvar="ROUNDHOUSE_CONTROLLER_URL",
        help="Address of the controller: unix:PATH or http://HOST:PORT; default: the socket in the state folder.",
    ),
]
GatewayUrl: TypeAlias = Annotated[
    str | None,
    typer.Option("--gateway", metavar="URL", help="Address of the gateway; default: the controller is asked for it."),
]
ModelArgument: TypeAlias = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name of the model.", autocompletion=model_names, callback=checked_name),
]
NoWait: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--no-wait", help="Return as soon as the controller has accepted the request, without waiting for its end."
    ),
]
Timeout: TypeAlias = Annotated[
    float, typer.Option("--timeout", min=0, max=3600, metavar="SECONDS", help="Maximum time to wait.")
]
Follow: TypeAlias = Annotated[
    bool, typer.Option("--follow", "-f", help="Print new entries as they come, until Ctrl-C.")
]
Kinds: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--kind",
        metavar="KIND",
        help="Show only entries of this kind, such as state or failure; may be repeated.",
        autocompletion=event_kinds,
    ),
]


def parse_kinds(chosen_kinds: list[str] | None) -> list[str]:
    """Return the kinds of events as they were asked for; empty if none was, which leaves the choice to the command.
    Raises CommandError (ExitCode.USAGE) for an unknown kind."""
    kinds = event_kinds("")
    unknown = next((kind for kind in chosen_kinds or () if kind not in kinds), None)
    if unknown is not None:
        raise CommandError(f"--kind {unknown}: there is no such kind; the kinds are {', '.join(kinds)}", ExitCode.USAGE)
    return chosen_kinds or []
