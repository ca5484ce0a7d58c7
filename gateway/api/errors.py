"""Exception handlers of the web framework: unknown paths, wrong methods and other errors get the error envelope."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from common.tracebacks import without_tracebacks
from controller.schema.errors import RoundhouseError
from gateway.protocols.error_form import error_body
from gateway.server.asgi import error_headers


def declare(app: FastAPI) -> None:
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
            return _answer(request, _explain_unreadable(error))
        if error.status_code != 405:
            return _answer(request, RoundhouseError("unknown_route", f"There is no {path}."))
        if not (methods := _allowed_methods(request)):
            return _answer(request, RoundhouseError("unknown_route", f"There is no {request.method} {path}."))
        answer = _answer(request, RoundhouseError("method_not_allowed", f"{path} is not for {request.method}."))
        answer.headers["allow"] = ", ".join(methods)
        return answer

    @app.exception_handler(RequestValidationError)
    async def refused_input(request: Request, error: RequestValidationError) -> Response:
        return _answer(request, _explain_refusal(error))

    @app.exception_handler(RoundhouseError)
    async def own_error(request: Request, error: RoundhouseError) -> Response:
        return _answer(request, without_tracebacks(error))

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        # Starlette raises `error` again after this; the ingress middleware logs it with the request's id.
        return _answer(request, RoundhouseError("internal_error", "The gateway failed on this request."))


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


def _answer(request: Request, error: RoundhouseError) -> Response:
    headers = {name.decode(): value.decode() for name, value in error_headers(error)}
    body = error_body(request.scope["path"], error, request.state.request_id)
    return Response(body, error.entry.status, headers)


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
    return sorted(methods)
