"""What handlers read of requests, and how they answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, ParamSpec, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from controller.schema.errors import RoundhouseError

LONGEST_BODY: Final = 64 * 1024
"""Bytes."""
Model = TypeVar("Model", bound=BaseModel)
Answer = TypeVar("Answer")
Arguments = ParamSpec("Arguments")


async def read_order(request: Request, model: type[Model]) -> Model:
    """Return the body of a request as the model. Raises RoundhouseError `body_too_large` as soon as more than
    `LONGEST_BODY` bytes have come, `invalid_json`, or `invalid_request` for the first wrong field; and ClientDisconnect
    if the client leaves before the end."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > LONGEST_BODY:
            raise RoundhouseError("body_too_large", f"The body is larger than {LONGEST_BODY} bytes.")
    try:
        return model.model_validate_json(bytes(body))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        if first["type"] == "json_invalid":
            raise RoundhouseError("invalid_json", f"The body is no JSON: {first['msg']}.") from None
        field = ".".join(str(step) for step in first["loc"])
        raise RoundhouseError("invalid_request", f"`{field or 'body'}`: {first['msg']}.", param=field or None) from None


def answer_model(model: BaseModel, status: int = 200) -> Response:
    """Return an answer with this status and the model as JSON."""
    return Response(model.model_dump_json(), status, media_type="application/json")


class Worker:
    """Runs functions that block in the threads of an executor, so that the event loop goes on answering. Who made the
    executor shuts it down."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads

    async def run(
        self, function: Callable[Arguments, Answer], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Answer:
        """Call the function with these arguments in a thread, and return what it returns or raise what it raises. If
        the caller is cancelled, the function still runs to its end."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: function(*args, **kwargs))
