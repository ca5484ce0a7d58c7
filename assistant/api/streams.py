"""GET and DELETE of a resumable stream, and POST /v1/streams/lookup."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Final

from fastapi import Path, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, Field, RootModel

from assistant.streams.resumable_streams import ResumableStreams, replay_stream
from assistant.streams.stream import (
    ResumableStream,
    StreamState,
    error_events,
    offset_ahead,
    offset_lost,
    reader_too_slow,
    reading_stopped,
    stream_loading,
)
from contract.route_spec import Parameter, RouteSpec
from gateway.api.declare import HttpRoutes, RequestBody, Rule, answer_json
from gateway.protocols.common.field_reader import field_error
from gateway.server.asgi import request_id_of

PATH: Final = "/v1/stream/{conv_id:path}"
BARE_PATH: Final = "/v1/stream"
LOOKUP_PATH: Final = "/v1/streams/lookup"
MOST_LOOKED_UP: Final = 1000
_MOST_DIGITS: Final = 15


class FoundStream(BaseModel):
    """Description of a resumable stream in the answer to a look-up: llama-server's fields, and more."""

    conversation_id: str
    is_done: bool = Field(description="Whether the stream has ended, for whatever reason.")
    total_bytes: int = Field(
        description="Number of bytes that the stream has had so far, including bytes that are no longer kept."
    )
    started_at: int = Field(description="Unix time in seconds at which the stream began.")
    completed_at: int = Field(description="Unix time in seconds at which the stream ended; 0: the stream is live.")
    state: StreamState = Field(
        description="State of the stream: `live`, `done` (complete), `cut` (ended by an error) or `stopped` (by a "
        "client)."
    )
    first_offset: int = Field(description="Offset of the first byte that is still kept.")
    model: str
    in_file: bool = Field(
        description="Whether the stream is kept in a file, so that it survives an end of the gateway."
    )


class FoundStreams(RootModel[list[FoundStream]]):
    """Answer to a look-up: the caller's streams that have one of the asked ids, or one followed by a model
    (`id::model`). Ids without a stream are left out."""


class LookedUpStreams(RequestBody):
    """Body of `POST` to look streams up: the ids, of conversations, that streams are looked for by."""

    conversation_ids: Annotated[
        list[str],
        Field(max_length=MOST_LOOKED_UP),
        Rule("must be an array of strings", "must have {max_length} entries at most; it has {actual_length}"),
    ]


StreamId = Annotated[
    str, Path(description="Value of the header `X-Conversation-Id` of the stream's request; it may contain `/`.")
]
_ID_PARAMETER: Final = Parameter(
    "conv_id", "Value of the header `X-Conversation-Id` of the stream's request.", {"type": "string"}, required=True
)
_READ_PARAMETERS: Final = (
    Parameter(
        "from",
        "Offset of the first byte to return, which is the number of bytes that the client has received.",
        {"type": "integer", "minimum": 0, "default": 0},
    ),
    Parameter(
        "ids",
        "true: add a line `id:` with the offset after the event to each event. Offsets do not count these lines.",
        {"type": "boolean", "default": False},
    ),
    Parameter(
        "Last-Event-ID",
        "Overrides `from`. A browser's EventSource sends this header when it reconnects.",
        {"minimum": 0, "type": "integer"},
        place="header",
    ),
)
_READ_ANSWER: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The bytes of the stream from the offset on; a live stream is followed to its end.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
        "headers": {
            "x-stream-state": {
                "description": "State of the stream: `live`, `done`, `cut` (by an error) or `stopped` (by a client).",
                "schema": {"type": "string", "enum": [state.value for state in StreamState]},
            },
            "x-stream-first-offset": {
                "description": "Offset of the first byte that is still kept.",
                "schema": {"type": "integer"},
            },
            "x-stream-length": {
                "description": "Number of bytes that the stream has had so far.",
                "schema": {"type": "integer"},
            },
            "x-stream-file": {
                "description": "`kept`: in a file, so that it survives an end of the gateway; `none`: in memory only.",
                "schema": {"type": "string", "enum": ["kept", "none"]},
            },
        },
    }
}


_route = partial(RouteSpec, tag="streams")
_READ: Final = _route(
    "GET",
    PATH,
    "Read a stream again",
    "Returns the stream of a request with `X-Conversation-Id`, from any byte that is kept, and follows a live stream "
    "to its end. It ends as it ended for the request's own client. While the request waits for a load and nothing of "
    "its answer was sent, the error `model_loading` asks the client to try again.",
    query=_READ_PARAMETERS,
    codes=("stream_offset_lost", "model_loading", "stream_not_found"),
)
_READ_OPTIONS: Final[dict[str, Any]] = {"responses": _READ_ANSWER, "response_class": StreamingResponse}
_STOP: Final = _route(
    "DELETE",
    PATH,
    "Stop a stream",
    "Cancels the request of a live stream, also in its engine; the bytes that were sent stay readable. A stream that "
    "has ended in another way is removed. Repeating the request changes nothing.",
    status=204,
    codes=("stream_not_found",),
)


def declare(routes: HttpRoutes, streams: ResumableStreams) -> None:
    """Add `GET` and `DELETE` of `/v1/stream/{conv_id}` and `/v1/stream`, and `POST /v1/streams/lookup`,
    which are served from `streams`."""

    async def read(request: Request, conv_id: str) -> Response:
        await streams.wait_until_recovered(request.state.caller, conv_id)
        stream = streams.find_stream(request.state.caller, _require_id(conv_id))
        answer = read_stream(request, streams, stream, _read_offset(request))
        streams.read_count += 1
        return answer

    async def stop(request: Request, conv_id: str) -> Response:
        await streams.wait_until_recovered(request.state.caller, conv_id)
        streams.stop_stream(request.state.caller, _require_id(conv_id))
        return Response(status_code=204)

    @routes.add(_READ, **_READ_OPTIONS)
    async def read_by_path(request: Request, conv_id: StreamId) -> Response:
        return await read(request, conv_id)

    @routes.add(replace(_READ, path=BARE_PATH, query=(_ID_PARAMETER, *_READ_PARAMETERS)), **_READ_OPTIONS)
    async def read_by_query(request: Request) -> Response:
        return await read(request, request.query_params.get("conv_id", ""))

    @routes.add(_STOP)
    async def stop_by_path(request: Request, conv_id: StreamId) -> Response:
        return await stop(request, conv_id)

    @routes.add(replace(_STOP, path=BARE_PATH, query=(_ID_PARAMETER,)))
    async def stop_by_query(request: Request) -> Response:
        return await stop(request, request.query_params.get("conv_id", ""))

    @routes.add(_route("POST", LOOKUP_PATH, "Look up streams", answer=FoundStreams, body=LookedUpStreams))
    async def look_up(request: Request, body: LookedUpStreams) -> Response:
        """Describes the caller's streams with these ids, and with these ids followed by a model (`id::model`). Ids
        without a stream are left out. There is no list of all streams."""
        for conv_id in body.conversation_ids:
            await streams.wait_until_recovered(request.state.caller, conv_id)
        found_streams = streams.find_variants(request.state.caller, body.conversation_ids)
        return answer_json([_describe(stream) for stream in found_streams])


def read_stream(request: Request, streams: ResumableStreams, stream: ResumableStream, offset: int) -> Response:
    """Return the answer that sends `stream` from byte `offset` on: the bytes that are kept, and then what comes until
    the stream ends.

    `offset` may lie within an event. The query `ids` of `request` asks for an `id:` line per event. The status of the
    answer is 200 even for a stream that an error cut off; a reader that is too slow, or that is behind when the gateway
    stops, gets an error as its last event. `stream` must be one that the caller may read.

    Raises:
        RoundhouseError: `stream_offset_lost` for an `offset` whose bytes are not kept any more or that is beyond the
            stream's length so far; `model_loading` if nothing was sent yet because the model is being loaded.
    """
    ring, request_id = stream.ring, request_id_of(request.scope)
    if offset < ring.first_offset:
        raise offset_lost(offset, ring.first_offset)
    if offset > ring.end_offset:
        raise offset_ahead(offset, ring.end_offset)
    if stream.producer is not None and stream.producer.is_loading:
        raise stream_loading(stream.model)
    headers = {
        "cache-control": "no-cache",
        "x-accel-buffering": "no",
        "x-stream-state": stream.state.value,
        "x-stream-first-offset": str(ring.first_offset),
        "x-stream-length": str(ring.end_offset),
        "x-stream-file": "kept" if stream.has_file else "none",
    }
    events = replay_stream(
        stream,
        offset,
        with_ids=request.query_params.get("ids", "").lower() in ("1", "true"),
        lost_events=error_events(stream.path, reader_too_slow(), request_id),
        find_stop_events=lambda: _find_stop_events(streams, stream, request_id),
    )
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)


def _find_stop_events(streams: ResumableStreams, stream: ResumableStream, request_id: str) -> bytes | None:
    return error_events(stream.path, reading_stopped(), request_id) if streams.is_stopping else None


def _describe(stream: ResumableStream) -> dict[str, Any]:
    is_live = stream.state is StreamState.LIVE
    return {
        "conversation_id": stream.id,
        "is_done": not is_live,
        "total_bytes": stream.ring.end_offset,
        "started_at": int(stream.began_at),
        "completed_at": int(stream.ended_at or 0),
        "state": stream.state.value,
        "first_offset": stream.ring.first_offset,
        "model": stream.model,
        "in_file": stream.has_file,
    }


def _require_id(conv_id: str) -> str:
    if not conv_id:
        raise field_error("conv_id", "must be the id of a stream; it is missing")
    return conv_id


def _read_offset(request: Request) -> int:
    last_event_id = request.headers.get("last-event-id")
    if last_event_id:
        return _parse_offset(last_event_id, "Last-Event-ID")
    return _parse_offset(request.query_params.get("from") or "0", "from")


def _parse_offset(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise field_error(name, f"must be an offset in bytes; it is {text!r:.60}")
    return int(text)
