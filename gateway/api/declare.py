"""How the gateway's routes are declared: one `RouteSpec` each, from which `HttpRoutes` makes the route of FastAPI, its
access, the check of its body and its part of the OpenAPI document. Errors of all routes get the error envelope.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from common.processes import without_tracebacks
from contract.errors import ERROR_CODES, ErrorEnvelope, RoundhouseError
from contract.route_spec import Access, Parameter, RouteSpec
from gateway.exchange.exchange import MOST_SHARE
from gateway.ingress.middleware import find_declaration, require_access
from gateway.protocols.api_matrix import error_body
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.errors import encode_json
from gateway.protocols.common.large_body import READING_COPIES, WHOLE_COPIES, count_value_bytes
from gateway.protocols.common.request import parse_object
from gateway.server.asgi import AWAITS_ROOM, ClientGoneError, Scope, error_headers, read_body
from gateway.server.body_budget import BodyBudget, BodyReservation
from gateway.server.request_head import without_spare_slashes
from gateway.settings import MIB

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])

TAGS: Final[list[dict[str, Any]]] = [
    {"name": "inference", "description": "OpenAI's API, answered by the engine of the model that a request names."},
    {"name": "engines", "description": "Routes of llama.cpp's own API, answered by the engine of the model."},
    {"name": "responses", "description": "Responses that are stored or running."},
    {"name": "streams", "description": "Streams that can be read again."},
    {"name": "stored", "description": "Stored chat completions, and conversations."},
    {"name": "retrieval", "description": "Documents, searches, and OpenAI's files and vector stores."},
    {"name": "tools", "description": "Tools that clients and models may call, where an operator has enabled them."},
    {"name": "models", "description": "Models that requests can name."},
    {
        "name": "operations",
        "description": "Health, metrics, limits and clock of the gateway. Each says which key it needs.",
    },
]

INGRESS_CODES: Final = (
    "invalid_request",
    "invalid_api_key",
    "keys_required",
    "forbidden_host",
    "forbidden_origin",
    "rate_limit_exceeded",
    "controller_unavailable",
    "internal_error",
)
"""Error codes of every route that needs a key or a known host."""

ADMIN_SCOPE_CODES: Final = ("admin_closed", "admin_not_here")
"""Error codes of routes that need the scope `admin`, besides the others."""

BODY_CODES: Final = ("invalid_json", "body_too_large", "request_timeout")
"""Further error codes of routes that read a body."""

ADMIN_CODES: Final = (
    "scope_required",
    *ADMIN_SCOPE_CODES,
    "unknown_route",
    "request_timeout",
    "body_too_large",
    "headers_too_large",
    "gateway_stopping",
    *INGRESS_CODES,
)
"""Error codes of the gateway itself, not the controller, on admin routes."""

_ACCESS_CODES: Final[dict[Access, tuple[str, ...]]] = {
    "open": (),
    "metrics": ("invalid_api_key", "scope_required"),
    "page": (),
    "any_key": INGRESS_CODES,
    "inference": ("scope_required", *INGRESS_CODES),
    "admin": ("scope_required", *ADMIN_SCOPE_CODES, *INGRESS_CODES),
}
"""Error codes that follow from a route's access."""

ENVELOPE: Final = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorEnvelope"}}}
"""Content of a response that is an error. Not FastAPI's `model`, which builds a validator for each response of each
route: 0.09 s of a gateway's start. `ANY_OTHER` alone has it, and so the document has the schema."""

ANY_OTHER: Final[dict[int | str, dict[str, Any]]] = {
    "default": {"model": ErrorEnvelope, "description": "Any other error."}
}

_FORM: Final = {
    "type": "object",
    "required": ["file"],
    "properties": {"file": {"type": "string", "format": "binary"}},
    "additionalProperties": {"type": "string"},
}
_LINE_END: Final = re.compile(r"(?<!\n)\n(?!\n)")
"""The end of a line within a paragraph."""
_PATH_PARAMETER: Final = re.compile(r"\{(\w+)(?::path)?\}")


def error_responses(*codes: str) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI `responses` of a route that may answer with these error codes, by HTTP status, ascending.

    Each has the error envelope as its content, and a description with one Markdown line per code. Empty without codes.

    Raises:
        KeyError: a code is not in `ERROR_CODES`.
    """
    entries = sorted((ERROR_CODES[code] for code in codes), key=lambda entry: (entry.status, entry.code))
    return {
        status: {
            "description": "\n".join(f"- `{entry.code}`: {entry.meaning}" for entry in group),
            "content": ENVELOPE,
        }
        for status, group in itertools.groupby(entries, key=lambda entry: entry.status)
    }


def admin_errors() -> dict[str, list[str]]:
    """Return the errors that the gateway itself, not the controller, may answer on admin routes.

    By HTTP status as text, one Markdown line per error code. For `openapi_merge.merge_documents`.
    """
    return {str(status): answer["description"].split("\n") for status, answer in error_responses(*ADMIN_CODES).items()}


def codes_paragraph(codes: Iterable[str]) -> str:
    """Return a Markdown paragraph for a route's description that lists `codes`, in their order; empty without any."""
    listed = ", ".join(f"`{code}`" for code in codes)
    return f"Error codes: {listed}." if listed else ""


@dataclass(frozen=True, slots=True)
class Rule:
    """What a field of a `RequestBody` must be. The message of a refusal is the field's name and `text`. `too_long`
    replaces `text` where the array or text is too long, and may hold `{max_length}` and, of an array,
    `{actual_length}`; None: `text` is used."""

    text: str
    too_long: str | None = None


def _simplify_schema(schema: dict[str, Any]) -> None:
    schema.pop("title", None)
    schema.pop("description", None)
    for each in schema.get("properties", {}).values():
        each.pop("title", None)
        if each.get("additionalProperties") is True:
            del each["additionalProperties"]
    schema.setdefault("required", [])


class RequestBody(BaseModel):
    """A JSON body. Values of another type are not converted; fields that it does not list are ignored. A field whose
    annotation has a `Rule` is refused in its words, any other in pydantic's."""

    model_config = ConfigDict(strict=True, json_schema_extra=_simplify_schema)


_Body = TypeVar("_Body", bound=BaseModel)


def parse_body(model: type[_Body], fields: Fields) -> _Body:
    """Return `fields`, a decoded body, as an object of `model`. Raises RoundhouseError `invalid_request` for the first
    wrong field, in the words of its `Rule` or else of pydantic; `param` is the field."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
    name = str(first["loc"][0])
    field = model.model_fields.get(name)  # None: a field that the model forbids
    rule = None if field is None else next((each for each in field.metadata if isinstance(each, Rule)), None)
    if rule is None:
        place = ".".join(str(part) for part in first["loc"])
        raise RoundhouseError("invalid_request", f"`{place}`: {first['msg']}.", param=place)
    is_too_long = first["type"] in ("too_long", "string_too_long") and len(first["loc"]) == 1  # the field, no entry
    text = rule.too_long.format(**first["ctx"]) if rule.too_long and is_too_long else rule.text
    raise RoundhouseError("invalid_request", f"`{name}` {text}.", param=name)


class HttpRoutes:
    """Adds routes to the gateway's FastAPI application."""

    def __init__(self, app: FastAPI, max_body_bytes: int, body_budget: BodyBudget) -> None:
        """`max_body_bytes`: largest body of a request, where the route sets no other bound. `body_budget`: memory for
        large bodies."""
        self.app = app
        self._max_body_bytes = max_body_bytes
        self._body_budget = body_budget

    def add(
        self, spec: RouteSpec, *, max_body_bytes: int | None = None, **options: Any
    ) -> Callable[[Endpoint], Endpoint]:
        """Return a decorator that adds the route with the decorated function as its handler.

        Where the spec has no description, the handler's docstring is it. Where the spec has a body, the handler's
        parameter `body` gets it: an object of the model, or the fields as they were sent; an empty body has no fields,
        and its Content-Type does not matter. A handler without that parameter forwards the body unread. FastAPI reads
        what else the handler takes (path and query parameters) from its signature.

        `max_body_bytes` None: that of the constructor. `options`: as of FastAPI's `add_api_route`; `responses` and
        `openapi_extra` are added to what follows from the spec. Raises KeyError for a code that `ERROR_CODES` lacks.
        """
        codes = _list_codes(spec)
        others = ANY_OTHER if spec.access not in ("open", "metrics") else {}
        most_bytes = max_body_bytes or self._max_body_bytes
        arguments: dict[str, Any] = {
            "methods": [spec.method],
            "status_code": spec.status,
            "summary": spec.summary,
            "tags": [spec.tag],
            "response_model": spec.answer,
            **options,
            "responses": error_responses(*codes) | others | options.get("responses", {}),
            "openapi_extra": _describe_request(spec) | options.get("openapi_extra", {}),
        }

        def join(endpoint: Endpoint) -> Endpoint:
            if spec.body is not None and "body" in endpoint.__annotations__:
                read_body = self._body_reader(spec.body, most_bytes)  # the handler's, and not its client's who reads
                endpoint.__annotations__["body"] = Annotated[Any, Depends(read_body, scope="function")]
            text = spec.description or _LINE_END.sub(" ", inspect.cleandoc(endpoint.__doc__ or ""))
            arguments["description"] = "\n\n".join(filter(None, (text, codes_paragraph(codes))))
            self.app.add_api_route(spec.path, require_access(spec.access)(endpoint), **arguments)
            return endpoint

        return join

    def _body_reader(
        self, body: type[BaseModel] | Mapping[str, Any], max_bytes: int
    ) -> Callable[[Request], AsyncIterator[Any]]:
        async def read(request: Request) -> AsyncIterator[BaseModel | Fields]:
            memory = _BodyMemory(self._body_budget, request.scope)
            try:
                fields = await _read_fields(request, max_bytes, memory)
                yield parse_body(body, fields) if isinstance(body, type) else fields
            finally:
                memory.give_back()

        return read


class _BodyMemory:
    """What one body takes of the memory for large bodies; nothing, if it has at most `LARGE_BYTES` (256 KiB)."""

    def __init__(self, budget: BodyBudget, scope: Scope) -> None:
        """`scope`: that of the request. The connection sees in it that the client waits for the gateway."""
        self._budget = budget
        self._scope = scope
        self._room: BodyReservation | None = None

    async def claim_room(self, size: int) -> None:
        """Wait for room to read a body of at most `size` bytes. Call once."""
        granted = asyncio.Event()
        self._room = self._budget.reserve(READING_COPIES * size, granted.set)
        if not self._room.is_granted:
            await self._wait(granted)

    async def settle_room(self, body: bytes) -> None:
        """Wait for the room that a body takes when it is decoded. Raises RoundhouseError `body_too_large` if that is
        more than one request may take."""
        if self._room is None:
            return
        size, granted = READING_COPIES * len(body) + count_value_bytes(body), asyncio.Event()
        if size > max(self._budget.max_bytes // MOST_SHARE, WHOLE_COPIES * len(body)):
            message = f"The body's values would take {size // MIB} MiB of memory: send fewer at a time."
            raise RoundhouseError("body_too_large", message)
        if not self._budget.resize(self._room, size, granted.set):
            await self._wait(granted)

    async def _wait(self, granted: asyncio.Event) -> None:
        self._scope[AWAITS_ROOM] = True
        try:
            await granted.wait()
        finally:
            self._scope[AWAITS_ROOM] = False

    def give_back(self) -> None:
        """Give back what was claimed, or stop waiting for it. Call once, when the request is over."""
        if self._room is not None:
            self._budget.release(self._room)


def _list_codes(spec: RouteSpec) -> tuple[str, ...]:
    body_codes = () if spec.body is None else BODY_CODES
    return tuple(dict.fromkeys((*spec.codes, *body_codes, *_ACCESS_CODES[spec.access])))


def _describe_request(spec: RouteSpec) -> dict[str, Any]:
    described: dict[str, Any] = {}
    if spec.query:
        described["parameters"] = [_describe_parameter(each) for each in spec.query]
    content: dict[str, Any] = {}
    is_required = True
    if spec.body is not None:
        schema = spec.body if isinstance(spec.body, Mapping) else _inline_schema(spec.body)
        content["application/json"] = {"schema": schema}
        is_required = schema.get("required") != []
    if spec.takes_file:
        content["multipart/form-data"] = {"schema": _FORM}
    if content:
        described["requestBody"] = {"required": is_required, "content": content}
    return described


def _describe_parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.required,
        "schema": parameter.schema,
        "description": parameter.description,
        **parameter.style,
    }


def list_path_parameters(spec: RouteSpec) -> tuple[Parameter, ...]:
    """Return the parameters in the path of `spec`, each a required text that is described as "Its id.", for a handler
    whose signature does not have them. Empty if the path has none."""
    names = _PATH_PARAMETER.findall(spec.path)
    return tuple(Parameter(name, "Its id.", {"type": "string"}, place="path", required=True) for name in names)


def _inline_schema(body: type[BaseModel]) -> dict[str, Any]:
    """Return a body's JSON Schema with its definitions in place: a body has none that refers to itself."""
    schema = body.model_json_schema()
    definitions = schema.pop("$defs", {})

    def inline(value: Any) -> Any:
        if isinstance(value, list):
            return [inline(each) for each in value]
        if not isinstance(value, dict):
            return value
        if "$ref" in value:
            rest = {key: inline(each) for key, each in value.items() if key != "$ref"}
            return {**inline(definitions[value["$ref"].rpartition("/")[2]]), **rest}
        return {key: inline(each) for key, each in value.items()}

    inlined: dict[str, Any] = inline(schema)
    return inlined


async def _read_fields(request: Request, max_bytes: int, memory: _BodyMemory) -> Fields:
    """Read the JSON object in a request's body; an empty body has no fields. `max_bytes`: largest body.

    Raises:
        RoundhouseError: `invalid_json` if the body is no JSON object, `invalid_request` if a number in it is too large,
            `body_too_large`, or `request_timeout` if the client left before the end or was too slow.
    """
    try:
        body = await read_body(request.scope, request.receive, max_bytes, memory.claim_room)
    except ClientGoneError:
        raise RoundhouseError("request_timeout", "The client left before it had sent its body.") from None
    await memory.settle_room(body)
    return parse_object(body)


def body_schema(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    """Return the JSON Schema of a body whose fields its handler checks. `properties`: JSON Schema by name. `required`:
    names that must be there; the body is optional if there are none."""
    return {"type": "object", "properties": properties, "required": list(required)}


def read_choice(query: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """Return the query parameter `name`, which must be one of `choices`; the first one if it is missing.

    Raises RoundhouseError `invalid_request` for any other value.
    """
    value = query.get(name, choices[0])
    if value not in choices:
        message = f"`{name}` must be {' or '.join(choices)}; it is {value!r:.60}."
        raise RoundhouseError("invalid_request", message, param=name)
    return value


def answer_json(content: Fields | Sequence[Fields]) -> Response:
    """Return a response of status 200 with an object, or an array of objects, as its JSON body, without checking it
    against a schema."""
    return Response(encode_json(content), media_type="application/json")


def declare_errors(app: FastAPI) -> None:
    """Install the handlers in `app` that answer its exceptions with the error envelope of the path's API. Call once.

    The code is `unknown_route` for an unknown path; `method_not_allowed`, with an `Allow` header, for another method of
    a known path; `invalid_request` or `invalid_json` for parameters and bodies that a route's types refuse; that of a
    RoundhouseError; and `internal_error` for any other exception, which Starlette raises again after the answer.
    Requests must have `state.request_id`, which the ingress middleware sets.
    """

    @app.exception_handler(HTTPException)
    async def framework_error(request: Request, error: HTTPException) -> Response:
        path = request.scope["path"]
        if error.status_code == 400:
            return _answer_error(request, _explain_unreadable(error))
        if error.status_code != 405:
            return _answer_error(request, RoundhouseError("unknown_route", f"There is no {path}.{_hint(path)}"))
        if not (methods := _allowed_methods(request)):
            return _answer_error(request, RoundhouseError("unknown_route", f"There is no {request.method} {path}."))
        answer = _answer_error(request, RoundhouseError("method_not_allowed", f"{path} is not for {request.method}."))
        answer.headers["allow"] = ", ".join(methods)
        return answer

    @app.exception_handler(RequestValidationError)
    async def refused_input(request: Request, error: RequestValidationError) -> Response:
        return _answer_error(request, _explain_refusal(error))

    @app.exception_handler(RoundhouseError)
    async def own_error(request: Request, error: RoundhouseError) -> Response:
        return _answer_error(request, without_tracebacks(error))

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        # Starlette raises `error` again after this; the ingress middleware logs it with the request's id.
        return _answer_error(request, RoundhouseError("internal_error", "The gateway failed on this request."))


def _explain_refusal(refusal: RequestValidationError) -> RoundhouseError:
    first = refusal.errors()[0]
    if first["type"] == "json_invalid":
        return RoundhouseError("invalid_json", f"The body is not JSON: {first['ctx']['error']}.")
    place = ".".join(str(part) for part in first["loc"][1:]) or None
    message = f"`{place}`: {first['msg']}." if place else f"The body: {first['msg']}."
    return RoundhouseError("invalid_request", message, param=place)


def _explain_unreadable(error: HTTPException) -> RoundhouseError:
    # FastAPI raises this for whatever a body's reading raised: its limit, or a parser that names no position.
    if isinstance(error.__cause__, RoundhouseError):
        return error.__cause__
    return RoundhouseError("invalid_json", "The body is not JSON that can be read.")


def _answer_error(request: Request, error: RoundhouseError) -> Response:
    headers = {name.decode(): value.decode() for name, value in error_headers(error)}
    body = error_body(request.scope["path"], error, request.state.request_id)
    return Response(body, error.entry.status, headers)


def _hint(path: str) -> str:
    """Return a further sentence, after a space, for the client of a path that looks misspelled; else an empty text."""
    if path.startswith("/v1/v1/"):
        return " The base URL ends with /v1 already: leave out one of the two."
    tidy = without_spare_slashes(path.encode("utf-8", "replace")).decode()
    return f" Try {tidy}, without the doubled or last slash." if tidy != path else ""


def _allowed_methods(request: Request) -> list[str]:
    """Return the methods of all routes that match the path; the framework names those of one route only.

    A last segment without a digit is not taken for an id, because it may be the name of another route, as in
    `/v1/responses/compact`.
    """
    is_word = not any(character.isdigit() for character in request.scope["path"].rpartition("/")[2])
    methods: set[str] = set()
    for route in request.app.router.routes:
        if not (is_word and route.path.endswith("_id}")) and route.matches(request.scope)[0] is not Match.NONE:
            methods |= route.methods or set()
            declaration = find_declaration(route)
            if "GET" in methods and (declaration is None or not declaration.is_direct):
                methods.add("HEAD")
    return sorted(methods)
