"""Hooks that keep an exchange's event stream as a resumable stream: for requests with `X-Conversation-Id`, and for
background responses."""

from __future__ import annotations

from functools import partial
from typing import Final

from assistant.storage.responses import ResponseRun, StoredResponses, read_all_events
from assistant.streams.resumable_streams import ClientFeed, ResumableStreams
from assistant.streams.stream import ResumableStream, StreamState, error_events, reader_too_slow
from contract.errors import RoundhouseError
from contract.routing import ModelRoute
from gateway.exchange.client_response import EVENT_STREAM_LINES
from gateway.exchange.exchange import Exchange
from gateway.exchange.hooks import ConditionalHook, ExchangeHooks, Trigger
from gateway.protocols.common.stream_ids import HEADER, find_stream_id
from gateway.protocols.responses.context import ResponseContext

_FILE_LINES: Final = {True: b"x-stream-file: kept\r\n", False: b"x-stream-file: none\r\n"}


class StreamRun:
    """Keeps the event stream of one exchange: opens it before admission, appends the events, ends it with the exchange.
    A `StreamProducer`."""

    __slots__ = (
        "_early_events",
        "_exchange",
        "_id",
        "_is_fed",
        "_is_unkept",
        "_response_id",
        "_responses",
        "_run",
        "_stream",
        "_streams",
    )

    def __init__(
        self,
        exchange: Exchange,
        streams: ResumableStreams,
        responses: StoredResponses,
        stream_id: str | None,
        response_id: str | None,
    ) -> None:
        """`stream_id`: the request's `X-Conversation-Id`; None: it has none. `response_id`: id of the background
        response that the request makes; None: it makes none. At least one of both is given."""
        self._exchange = exchange
        self._streams = streams
        self._responses = responses
        self._id = stream_id
        self._response_id = response_id
        self._run: ResponseRun | None = None
        """The response that the request makes, if it can be fetched by its id."""
        self._stream: ResumableStream | None = None
        """None: the stream is not opened yet, or the request has none."""
        self._is_fed = False
        """A `ClientFeed` was made for the client's call, or the client had left by then."""
        self._is_unkept = False
        """There was no room for the stream, so that nothing of it is kept."""
        self._early_events = b""
        """Bytes that the client was sent before the stream was opened."""

    def hooks(self) -> ExchangeHooks:
        """Return the hooks that open, feed and end the stream. Add them to the exchange, once."""
        return ExchangeHooks(
            before_admission=(self._open,),
            on_admitted=(self._find_run,),
            on_event=(self._take_events,),
            on_end=(self._end,),
        )

    # From the exchange

    def _open(self, exchange: Exchange) -> bool:
        stream_id = self._id or self._response_id
        assert stream_id is not None
        try:
            self._stream = stream = self._streams.open_stream(
                exchange.caller,
                stream_id,
                model=exchange.account.model,
                path=exchange.api.path,
                request_id=exchange.answer.request_id,
                response_id=self._response_id,
            )
        except RoundhouseError:
            if self._id is not None:
                raise
            self._is_unkept, self._early_events = True, b""
            return False  # a response in the background is stored in any case
        stream.producer = self
        exchange.outlive_client()
        if self._early_events:
            stream.append(self._early_events)
            self._feed_client(exchange, stream, sent_bytes=len(self._early_events))
        return False

    def _find_run(self, exchange: Exchange) -> None:
        state = exchange.request.state
        if isinstance(state, ResponseContext):
            self._run = self._responses.get_run(state.id)

    def _take_events(self, events: bytes) -> None:
        stream, exchange = self._stream, self._exchange
        if not exchange.answer.is_stream:
            return  # an answer that is no stream flows through
        if stream is None:
            if not self._is_unkept:
                self._early_events += events
            return
        stream.append(events)
        if not self._is_fed:
            self._feed_client(exchange, stream)

    def _feed_client(self, exchange: Exchange, stream: ResumableStream, sent_bytes: int = 0) -> None:
        self._is_fed = True
        if exchange.answer.client_gone:
            return
        lines = exchange.answer.lines + _FILE_LINES[stream.has_file] + EVENT_STREAM_LINES
        lost_events = error_events(exchange.api.path, reader_too_slow(), exchange.answer.request_id)
        feed = ClientFeed(stream, exchange.client, lines, lost_events, self._note_leaving, sent_bytes=sent_bytes)
        exchange.detach_client(feed)
        feed.wake()

    def _note_leaving(self) -> None:
        if not self._exchange.is_ended:
            self._exchange.answer.client_gone = True

    def _end(self, exchange: Exchange) -> None:
        stream, answer, streams = self._stream, exchange.answer, self._streams
        answer.stop_recording()
        if stream is None:
            return
        if not stream.ring.end_offset:
            self._end_unbegun(exchange, stream)
        is_cut = answer.error is not None or answer.broken_off_code is not None
        is_stopped = stream.is_stopping or _was_cancelled(exchange)
        state = StreamState.STOPPED if is_stopped else StreamState.CUT if is_cut else StreamState.DONE
        streams.end_stream(stream, state)

    def _end_unbegun(self, exchange: Exchange, stream: ResumableStream) -> None:
        """End a stream without a byte: its request was refused, or the answer was no event stream. Keeps the error for
        a client that left before, and removes the stream otherwise."""
        answer = exchange.answer
        if self._run is not None and self._run.events is not None:
            stream.append(read_all_events(self._run.events))
            return
        last_events = exchange.api.dialect.error_as_events(answer.error) if answer.error is not None else b""
        if last_events and answer.client_gone and not stream.is_stopping:
            stream.append(last_events)  # the client, which asked and was told nothing, may come back
        else:
            self._streams.remove_stream(stream, last_events)

    # StreamProducer

    @property
    def client_id(self) -> bytes:
        """`Caller.client_id` of the caller whose limits the request counts against."""
        return self._exchange.caller.client_id

    @property
    def is_loading(self) -> bool:
        """Whether the request waits for its model's load and no response head was sent, so that it may still be
        refused."""
        return self._exchange.load_wait is not None and not self._exchange.answer.status

    def stop(self, error: RoundhouseError) -> None:
        """Cancel the request, in its engine too. `error` becomes the stream's last event, unless the request makes a
        response that can be fetched by its id, which ends as cancelled. Does nothing after the end of the answer, even
        if that still waits for the store."""
        if self._run is not None:
            self._run.cancel()
        if not self._exchange.answer.is_ended:
            self._exchange.fail_request(error)


def _was_cancelled(exchange: Exchange) -> bool:
    state = exchange.request.state
    return isinstance(state, ResponseContext) and state.response is not None and state.response["status"] == "cancelled"


def _keep_stream(exchange: Exchange, _: ModelRoute, streams: ResumableStreams, responses: StoredResponses) -> None:
    request = exchange.request
    if not exchange.api.resumes:
        return
    stream_id = find_stream_id(exchange.client.headers) if request.stream else None
    is_background = exchange.api.state == "made" and request.outline_fields.get("background") is True
    if stream_id is not None or is_background:
        run = StreamRun(exchange, streams, responses, stream_id, request.state.id if is_background else None)
        exchange.add_hooks(run.hooks())
    if stream_id is not None and streams.is_made_for(exchange.caller, stream_id):
        exchange.replace_stream()


def stream_hooks(streams: ResumableStreams, responses: StoredResponses) -> ExchangeHooks:
    """Return the hooks that keep the stream of a request with `X-Conversation-Id` and of a background response, both by
    HTTP. Add them after those of stored responses, whose state they read."""
    hook = partial(_keep_stream, streams=streams, responses=responses)
    return ExchangeHooks(on_request=(ConditionalHook(hook, Trigger(frozenset(("background",)), frozenset((HEADER,)))),))
