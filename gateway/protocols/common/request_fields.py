"""The fields of the APIs' requests, in one table: what each does here, who refuses it, and what an engine's error calls
it. Pure.

A value that asks for an effect which nobody would give is refused, where an engine would ignore it and its client would
wait for it in vain. One that asks for nothing passes, as does each field of a remote model that is asked in its own
API: it may be OpenAI itself.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from contract.errors import RoundhouseError
from contract.routing import ModelRoute
from gateway.protocols.common.errors import decode_json, encode_json
from gateway.protocols.common.field_reader import describe_value

Api = Literal["chat", "completions", "embeddings", "responses", "messages"]
OURS: Final = "ours"
"""Among those who refuse a field: every engine that Roundhouse runs."""
AS_CHAT: Final = "as chat"
"""Among those who refuse a field: the gateway, where it makes a chat completion of the request."""
_REMOTE: Final = "openai_remote"


@dataclass(frozen=True, slots=True)
class RequestField:
    """What a field of an API's requests does here, and which engines refuse it: one entry of `request_fields.toml`."""

    note: str
    """What it does, or why it is refused and what to do instead."""
    harmless: bool = False
    """Whether it has no effect here, and no answer lacks anything for that."""
    refused: frozenset[str] = frozenset()
    """Backends that do not have the effect, `OURS`, `AS_CHAT`; empty: it has its effect, or is harmless."""
    idle: tuple[Any, ...] = ()
    """Values that ask for nothing, beside null, false and what is empty."""
    like: str | None = None
    """Field whose value asks for nothing here."""
    is_bare: bool = False
    """Whether an empty object asks for the effect, too."""
    code: str = "not_supported"
    """Error code of the refusal."""

    def requests_effect(self, name: str, fields: Mapping[str, Any]) -> bool:
        """Return whether the value of the field `name` in a request asks for an effect. `fields` must have it."""
        value = fields[name]
        if value is None or value is False or value == "" or value == []:
            return False
        if value == {}:
            return self.is_bare
        return not (value in self.idle or (self.like is not None and value == fields.get(self.like)))


def _read_table() -> tuple[dict[str, dict[str, RequestField]], dict[str, dict[str, str]]]:
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    params = table.pop("params")
    listed = ("refused", "idle")
    made: dict[str, dict[str, RequestField]] = {}
    for api, entries in table.items():
        made[api] = {
            name: RequestField(
                refused=frozenset(entry.get("refused", ())),
                idle=tuple(entry.get("idle", ())),
                **{key: value for key, value in entry.items() if key not in listed},
            )
            for name, entry in entries.items()
        }
    return made, params


_TABLE: Final = _read_table()
REQUEST_FIELDS: Final[Mapping[str, Mapping[str, RequestField]]] = _TABLE[0]
"""Every field of OpenAI's and Anthropic's requests by its name, by its `Api`."""
PARAMS: Final[Mapping[str, Mapping[str, str]]] = _TABLE[1]
"""What clients call fields of the chat completion that is made of their request, by the form of that."""
_REFUSED: Final[Mapping[str, Mapping[str, RequestField]]] = {
    api: {name: field for name, field in fields.items() if field.refused} for api, fields in REQUEST_FIELDS.items()
}

REFUSABLE: Final[Mapping[str, frozenset[str]]] = {api: frozenset(fields) for api, fields in _REFUSED.items()}
"""By API, the fields that any engine refuses. A request that has none of these needs no `check_effects`."""


def check_effects(fields: Mapping[str, Any], api: Api, route: ModelRoute) -> None:
    """Refuse a field that asks the model for an effect which its engine does not have, for requests that are passed
    through, or the fields that a translated one passes on. Raises RoundhouseError with the field's own code,
    `not_supported` (400) if it has none; its `param` is the field."""
    if route.backend != _REMOTE:
        _refuse(fields, api, (OURS, route.backend), f"with the model {route.name!r}")


def check_as_chat(fields: Mapping[str, Any], api: Api) -> None:
    """Refuse a field that asks for an effect which a chat completion made of the request cannot have, whoever serves
    that. Raises as `check_effects`."""
    if not REFUSABLE[api].isdisjoint(fields):
        _refuse(fields, api, (AS_CHAT,), "here")


def _refuse(fields: Mapping[str, Any], api: Api, by: Iterable[str], where: str) -> None:
    for name, field in _REFUSED[api].items():
        if name in fields and not field.refused.isdisjoint(by) and field.requests_effect(name, fields):
            message = f"`{name}` cannot be used {where}: {field.note} ({describe_value(fields[name])})."
            status = 400 if field.code == "not_supported" else None
            raise RoundhouseError(field.code, message, param=name, status=status)


_REWRITTEN: Final = ("messages", "tools", "tool_choice")


def rename_error(body: bytes, form: str | None) -> bytes:
    """Return the JSON of an engine's error in our envelope with the client's name of the field in `param`, as
    `rename_param`."""
    envelope = None if form is None else decode_json(body)
    error = envelope.get("error") if isinstance(envelope, dict) else None
    if envelope is None or not isinstance(error, dict) or error.get("param") is None:
        return body
    return encode_json({**envelope, "error": {**error, "param": rename_param(error["param"], form)}})


def rename_param(param: Any, form: str | None) -> Any:
    """Return what the client calls the field of a chat completion that an engine's error names, or a part of it.
    `form`: of the client's request, a key of `PARAMS`; None: it is a chat completion. The result is None if the client
    has no such field.

    The place inside the field is kept where the field keeps its name, except for what is counted or written otherwise
    there: messages and tools."""
    if form is None or not isinstance(param, str):
        return param if form is None else None
    root = param.partition(".")[0].partition("[")[0]
    own_name = PARAMS[form].get(root)
    if form == "functions":
        return param if own_name is None else own_name + param.removeprefix(root).replace(".function", "", 1)
    if own_name is None and root in REQUEST_FIELDS["chat"] and root not in REQUEST_FIELDS[form]:
        return None
    return own_name or (root if root in _REWRITTEN else param)
