"""What a stream is told of its progress, as SSE comments, and when. Pure.

A client asks for it by a header: `X-Progress: true` for all that its request waits for, `X-Load-Progress: true` for the
load of the model alone, in a form of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, Literal, NamedTuple

from controller.schema.routing import ModelRoute
from gateway.admission.admission import QueuePlace
from gateway.protocols.chat.prompt_progress import PromptProgress
from gateway.protocols.common.json_bytes import json_bytes
from gateway.server.asgi import Header

PROGRESS_HEADER: Final = b"x-progress"
LOAD_PROGRESS_HEADER: Final = b"x-load-progress"
TOLD_EVERY_S: Final = 0.25
"""Least seconds between two comments on the same stage of one request."""
_HEADERS: Final = frozenset((PROGRESS_HEADER, LOAD_PROGRESS_HEADER))


class Progress(NamedTuple):
    """What a request waits for, and how far that is."""

    stage: Literal["queue", "load", "prefill"]
    """`queue`: a slot; `load`: the load of its model; `prefill`: the engine, which reads the prompt."""
    model: str
    state: str | None = None
    """The model's state, in the stage `load`."""
    share: float | None = None
    """What of the load or of the prompt is done, 0 to 1; None: not known."""
    place: QueuePlace | None = None
    """The request's place in the queue now; None: it is not in the queue."""
    prompt: PromptProgress | None = None
    """Tokens of the prompt, in the stage `prefill`; None: the engine has told none."""
    session: str | None = None
    """What was decided of the request's session, as `X-Session`; None: nothing yet, or it belongs to none."""


def asked_progress(headers: Sequence[Header]) -> Collection[bytes]:
    """Return which of `PROGRESS_HEADER` and `LOAD_PROGRESS_HEADER` a request's headers hold with the value `true`."""
    asked: Collection[bytes] = ()
    for name, value in headers:
        if name in _HEADERS and value.strip().lower() == b"true":
            asked = (*asked, name)
    return asked


def queue_progress(route: ModelRoute, place: QueuePlace | None, *, is_loading: bool) -> Progress:
    """Return the progress of a request in the queue of the model `route`. `is_loading`: it waits for a load first."""
    if is_loading:
        return Progress("load", route.name, route.state.value, route.progress, place)
    return Progress("queue", route.name, place=place)


def prefill_progress(model: str, prompt: PromptProgress | None = None, session: str | None = None) -> Progress:
    """Return the progress of a request that an engine has. `prompt`: as the engine tells; None: it has told nothing.
    `session`: what was decided of its session."""
    share = None if prompt is None else prompt.share
    return Progress("prefill", model, share=share, prompt=prompt, session=session)


def progress_comment(progress: Progress) -> bytes:
    """Return the SSE comment that tells `progress`: one line of JSON. What is not known is left out."""
    fields: dict[str, object] = {"stage": progress.stage, "model": progress.model}
    if progress.state is not None:
        fields["state"] = progress.state
    if progress.share is not None:
        fields["progress"] = round(progress.share, 3)
    if progress.place is not None:
        fields["queue_position"], fields["queue_depth"] = progress.place.position, progress.place.depth
        if progress.place.wait_ms is not None:
            fields["estimated_wait_ms"] = progress.place.wait_ms
    if progress.session is not None:
        fields["session"] = progress.session
    if progress.prompt is not None:
        fields["prompt_tokens"] = progress.prompt.total
        fields["cached_tokens"] = progress.prompt.cached
        fields["processed_tokens"] = progress.prompt.processed
    return b": progress %b\n\n" % json_bytes(fields)


def load_comment(route: ModelRoute) -> bytes:
    """Return the SSE comment of `X-Load-Progress`: the model, its state, and the share of its load that is done (0 to
    1), if known."""
    fields: dict[str, object] = {"model": route.name, "state": route.state.value}
    if route.progress is not None:
        fields["progress"] = round(route.progress, 3)
    return b": load-progress %b\n\n" % json_bytes(fields)


def _is_urgent(told: Progress, progress: Progress) -> bool:
    """Return whether a change is told at once: a new stage or state, the first share, and a prompt that is read."""
    is_new = (told.stage, told.state, told.share is None) != (progress.stage, progress.state, progress.share is None)
    return is_new or (progress.stage == "prefill" and progress.share == 1)


class ProgressPace:
    """Decides when a change of one request's progress is told: an urgent one at once, another at most every
    `TOLD_EVERY_S`, and what has not changed never."""

    __slots__ = ("_told", "_told_at", "_untold")

    def __init__(self) -> None:
        self._told: Progress | None = None
        self._told_at = 0.0
        self._untold: Progress | None = None
        """The newest progress, if it is to be told yet."""

    def change(self, progress: Progress, now: float) -> bytes | None:
        """Note the progress at monotonic time `now`, in seconds. Return the comment to send now; None: none is due."""
        self._untold = progress if progress != self._told else None
        return self.next_comment(now)

    def next_comment(self, now: float) -> bytes | None:
        """Return the comment that is due at monotonic time `now`, in seconds; None: none is. Call about twice a second
        while the request waits, for changes that came too soon after others."""
        progress, told = self._untold, self._told
        if progress is None:
            return None
        if told is not None and not _is_urgent(told, progress) and now < self._told_at + TOLD_EVERY_S:
            return None
        self._told, self._told_at, self._untold = progress, now, None
        return progress_comment(progress)

    def drop(self) -> None:
        """Forget a change that is not told yet. Call when the wait that it belongs to is over."""
        self._untold = None
