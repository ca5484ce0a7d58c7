"""From the engine's answer to the client's: event by event, or whole."""

from __future__ import annotations

from gateway.answer import DONE_EVENT, Answer
from gateway.asgi import Header
from gateway.engine_errors import as_envelope, client_status
from gateway.sse import EventFilter, EventTooLongError
from gateway.upstream import EngineAnswer, EngineDiedError


async def relay_events(engine: EngineAnswer, answer: Answer, events: EventFilter) -> None:
    """Pass a stream on. Nothing happens to a chunk but a look and a write.

    Raises:
        EngineDiedError: it broke off, or ended without saying that it is done.
    """
    while chunk := await engine.read():
        try:
            whole = events.feed(chunk)
        except EventTooLongError as error:
            raise EngineDiedError(f"it sent {error}") from error
        if whole:
            await answer.event(whole)
    if last := events.finish():
        await answer.event(last)
    if events.is_error:
        await answer.event(DONE_EVENT)
    elif not events.is_done:
        raise EngineDiedError("its stream ended without [DONE]")
    await answer.end()


async def relay_whole(engine: EngineAnswer, answer: Answer, hold_bytes: int) -> bytes:
    """Pass an answer on once it is whole; one longer than `hold_bytes` flows through. Returns what was held.

    Raises:
        EngineDiedError: it broke off.
    """
    parts: list[bytes] = []
    size = 0
    status = client_status(engine.status)
    while part := await engine.read():
        parts.append(part)
        size += len(part)
        if size > hold_bytes:
            return await _flow(engine, answer, status, b"".join(parts))
    body = b"".join(parts)
    if status >= 400:
        body = as_envelope(engine.status, body, answer.request_id)
    await answer.whole(status, _headers(engine, is_error=status >= 400), body)
    return body


async def _flow(engine: EngineAnswer, answer: Answer, status: int, held: bytes) -> bytes:
    await answer.flow(status, _headers(engine, is_error=False), held)
    while part := await engine.read():
        await answer.flow(status, [], part)
    await answer.end()
    return held


def _headers(engine: EngineAnswer, *, is_error: bool) -> list[Header]:
    """Of the engine's headers only these: the rest belongs to its own connection, or is none of the client's."""
    content_type = "application/json" if is_error else engine.content_type or "application/json"
    headers = [(b"content-type", content_type.encode("latin-1"))]
    if engine.retry_after is not None:
        headers.append((b"retry-after", engine.retry_after.encode("latin-1")))
    return headers
