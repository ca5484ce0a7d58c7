"""The answer that a client gets: whole, as a stream of server-sent events, or flowing through."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from controller.schema.errors import RoundhouseError
from gateway.asgi import Header, Send, error_headers, send_whole

HEARTBEAT = b": ka\n\n"
DONE_EVENT = b"data: [DONE]\n\n"
_EVENT_STREAM_HEADERS: tuple[Header, ...] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a proxy in front must not collect the events
)


class Answer:
    """One answer. Its form is open until the first byte is sent; from then on errors travel in that form.

    `status` is 0 until then.
    """

    def __init__(self, send: Send, request_id: str, now: Callable[[], float]) -> None:
        """`now` gives monotonic seconds."""
        self._send = send
        self.request_id = request_id
        self._now = now
        self._last_sent = float("-inf")
        self._sending = asyncio.Lock()
        self._pulse: asyncio.Task[None] | None = None
        self._beating = False
        self._closed = False
        self._is_stream = False
        self.status = 0
        self.first_byte_at: float | None = None
        self.ended = False

    def start_heartbeats(self, hold_s: float, every_s: float) -> None:
        """From now on: commit to a stream if nothing was sent within `hold_s`, and never be silent for `every_s`.

        Heartbeats stand between events, because `event` is given whole events only.
        """
        self._pulse = asyncio.get_running_loop().create_task(self._beat(hold_s, every_s))

    async def _beat(self, hold_s: float, every_s: float) -> None:
        await asyncio.sleep(hold_s)
        while not self._closed:
            quiet = self._now() - self._last_sent
            if quiet < every_s:
                await asyncio.sleep(every_s - quiet)
                continue
            self._beating = True
            async with self._sending:
                if not self._closed:
                    await self._send_events(HEARTBEAT)
            self._beating = False

    def close(self) -> None:
        """No heartbeat will follow. One that is being sent is not cut short: half a message would remain."""
        self._closed = True
        if self._pulse is not None and not self._beating:
            self._pulse.cancel()

    async def event(self, events: bytes) -> None:
        """Send one or more whole events; the first ones commit the answer to being a stream."""
        if self.first_byte_at is None:
            self.first_byte_at = self._now()
        async with self._sending:
            await self._send_events(events)

    async def _send_events(self, events: bytes) -> None:
        if not self.status:
            self._is_stream = True
            await self._start(200, list(_EVENT_STREAM_HEADERS))
        self._last_sent = self._now()
        await self._send({"type": "http.response.body", "body": events, "more_body": True})

    async def end(self) -> None:
        """End a stream, or an answer that flows through."""
        self.close()
        async with self._sending:
            self.ended = True
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def whole(self, status: int, headers: list[Header], body: bytes) -> None:
        """Send a complete answer. In a stream that has begun, `body`, which is JSON then, becomes the last event."""
        self.close()
        async with self._sending:
            self.ended = True
            if self._is_stream:
                # JSON has line breaks only between tokens, so this changes nothing in it.
                event = b"data: " + body.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n\n" + DONE_EVENT
                await self._send({"type": "http.response.body", "body": event, "more_body": False})
                return
            if self.first_byte_at is None:
                self.first_byte_at = self._now()
            self.status = status
            await send_whole(self._send, status, [self._id_header, *headers], body)

    async def flow(self, status: int, headers: list[Header], part: bytes) -> None:
        """Send a part of an answer that is too long to be held; `headers` count for the first part.

        Raises:
            RoundhouseError: the answer is committed to being a stream, and this is none.
        """
        self.close()
        if self._is_stream:
            raise RoundhouseError("engine_disconnected", "The engine answered a stream with something else.")
        if not self.status:
            self.first_byte_at = self._now()
            await self._start(status, headers)
        await self._send({"type": "http.response.body", "body": part, "more_body": True})

    async def fail(self, error: RoundhouseError) -> None:
        """Tell the client of `error`, in the form that is left.

        An answer that flows through has none left: it stays unfinished, and the server closes the connection.
        """
        self.close()
        if self.ended or (self.status and not self._is_stream):
            return
        await self.whole(error.entry.status, error_headers(error), error.json_bytes(self.request_id))

    @property
    def _id_header(self) -> Header:
        return (b"x-request-id", self.request_id.encode())

    async def _start(self, status: int, headers: list[Header]) -> None:
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": [self._id_header, *headers]})
