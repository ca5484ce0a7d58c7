"""SSE comments that report what a stream waits for, when they are due, and who is to be told. Pure: `now` is monotonic
seconds.

A client asks for them by a header: `X-Progress: true` for queue, load and prefill; `X-Load-Progress: true` for the load
of the model alone, in another form.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, Literal, NamedTuple

from contract.routing import ModelRoute
from gateway.admission.ticket import QueuePlace
from gateway.protocols.chat.prompt_progress import PromptProgress
from gateway.protocols.common.json_bytes import json_bytes
from gateway.routing.availability import room_wait
from gateway.server.asgi import Header

PROGRESS_HEADER: Final = b"x-progress"
LOAD_PROGRESS_HEADER: Final = b"x-load-progress"
TOLD_EVERY_S: Final = 0.25
"""Minimum seconds between two comments of one request, but for urgent changes."""
PROGRESS_HEADERS: Final = frozenset((PROGRESS_HEADER, LOAD_PROGRESS_HEADER))


class Progress(NamedTuple):
    """What a request waits for, and how far along it is. `share`: the part of the load or the prompt that is done, 0 to
    1; None: not known."""

    stage: Literal["queue", "load", "prefill"]
    """`queue`: waits for a slot; `load`: waits for its model's load; `prefill`: the engine computes the prompt."""
    model: str
    state: str | None = None
    """The model's state, in the stage `load`; None in the others."""
    share: float | None = None
    """Share of the load or of the prompt that is done, 0 to 1; None: not known."""
    place: QueuePlace | None = None
    """Place in the queue; None: the request is not in the queue."""
    prompt: PromptProgress | None = None
    """Tokens of the prompt, in the stage `prefill`; None: the engine has reported none."""
    session: str | None = None
    """Value of `X-Session`; None: not decided yet, or the request belongs to no session."""
    reason: str | None = None
    """The room that the model waits for, in the stage `load`; None: it waits for none."""


def asked_progress(headers: Sequence[Header]) -> Collection[bytes]:
    """Return which of `PROGRESS_HEADER` and `LOAD_PROGRESS_HEADER` a request's headers hold with the value `true`, in
    any case. `headers`: names in lower case. Empty if the client asks for no progress."""
    asked: Collection[bytes] = ()
    for name, value in headers:
        if name in PROGRESS_HEADERS and value.strip().lower() == b"true":
            asked = (*asked, name)
    return asked


def queue_progress(route: ModelRoute, place: QueuePlace | None, *, is_loading: bool) -> Progress:
    """Return the progress of a request in the queue of the model `route`. `is_loading`: it waits for a load first.
    `place`: its place in the queue; None: it is not in the queue."""
    if is_loading:
        return Progress("load", route.name, route.state.value, route.progress, place, reason=room_wait(route))
    return Progress("queue", route.name, place=place)


def prefill_progress(model: str, prompt: PromptProgress | None = None, session: str | None = None) -> Progress:
    """Return the progress of a request that was sent to an engine. `prompt`: as the engine reports it; None: no report
    yet. `session`: value of `X-Session`; None: the request belongs to no session."""
    share = None if prompt is None else prompt.share
    return Progress("prefill", model, share=share, prompt=prompt, session=session)


def progress_comment(progress: Progress) -> bytes:
    """Return the SSE comment `: progress {...}` with one line of JSON and the blank line after it. Unknown values are
    left out."""
    fields: dict[str, object] = {"stage": progress.stage, "model": progress.model}
    if progress.state is not None:
        fields["state"] = progress.state
    if progress.reason is not None:
        fields["reason"] = progress.reason
    if progress.share is not None:
        fields["progress"] = round(progress.share, 3)
    if progress.place is not None:
        fields["queue_position"], fields["queue_depth"] = progress.place.position, progress.place.depth
        if progress.place.wait_ms is not None:
            fields["estimated_wait_ms"] = progress.place.wait_ms
        if progress.place.usual_wait_ms is not None:
            fields["wait_p50_ms"], fields["wait_p90_ms"] = progress.place.usual_wait_ms
    if progress.session is not None:
        fields["session"] = progress.session
    if progress.prompt is not None:
        fields["prompt_tokens"] = progress.prompt.total
        fields["cached_tokens"] = progress.prompt.cached
        fields["processed_tokens"] = progress.prompt.processed
    return b": progress %b\n\n" % json_bytes(fields)


def load_comment(route: ModelRoute) -> bytes:
    """Return the SSE comment of `X-Load-Progress`: the model, its state, the room that it waits for, if any, and the
    share of its load that is done (0 to 1), if known."""
    fields: dict[str, object] = {"model": route.name, "state": route.state.value}
    if (reason := room_wait(route)) is not None:
        fields["reason"] = reason
    if route.progress is not None:
        fields["progress"] = round(route.progress, 3)
    return b": load-progress %b\n\n" % json_bytes(fields)


def _is_urgent(told: Progress, progress: Progress) -> bool:
    """Return whether a change is sent at once: a new stage, state or reason, the first share, and the end of the
    prefill."""
    said, says = ((each.stage, each.state, each.reason, each.share is None) for each in (told, progress))
    is_new = said != says
    return is_new or (progress.stage == "prefill" and progress.share == 1)


class ProgressPace:
    """Decides when changes of one request's progress are sent: urgent ones at once, others at most every `TOLD_EVERY_S`
    seconds, and the same progress never twice in a row."""

    __slots__ = ("_told", "_told_at", "_untold")

    def __init__(self) -> None:
        self._told: Progress | None = None
        self._told_at = 0.0
        self._untold: Progress | None = None
        """The newest progress, if it is not sent yet; None: there is none."""

    def change(self, progress: Progress, now: float) -> bytes | None:
        """Record the progress, and return the comment to send at once, which counts as sent; None: none.

        `now`: monotonic seconds. A change that comes too soon after a comment is held back for `next_comment`. Progress
        that equals what was sent last drops a change that is held back.
        """
        self._untold = progress if progress != self._told else None
        return self.next_comment(now)

    def next_comment(self, now: float) -> bytes | None:
        """Return the comment that is due at `now` (monotonic seconds), and take it as sent; None: none is due.

        Call about twice a second while the request waits, for changes that came too soon after others.
        """
        progress, told = self._untold, self._told
        if progress is None:
            return None
        if told is not None and not _is_urgent(told, progress) and now < self._told_at + TOLD_EVERY_S:
            return None
        self._told, self._told_at, self._untold = progress, now, None
        return progress_comment(progress)

    def drop(self) -> None:
        """Forget a change that is not sent yet. Call when the wait that the change belongs to is over."""
        self._untold = None
