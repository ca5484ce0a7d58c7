"""When the parts of one response came, and what is kept of that with the items of a conversation. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.protocols.common.conversation import Fields


@dataclass(slots=True)
class AnswerTimes:
    """The times of one response, as Unix time in seconds. The `ResponseWriter` notes them: one per item, none per
    token."""

    begun_at: float = 0.0
    """When the request was read."""
    item_starts: list[float] = field(default_factory=list)
    """When each item of the output began, in order. Empty for an answer that was no stream."""
    first_token_at: float | None = None
    """When the first item began that the model wrote; None: none did, or that is not known."""
    ended_at: float | None = None
    """When the answer was complete; None: it is not."""

    def restart(self) -> None:
        """Forget the items of an attempt of which the client got nothing."""
        self.item_starts.clear()
        self.first_token_at = None

    def begin_item(self, now: float, *, is_said: bool) -> None:
        """Note that the next item of the output begins. `is_said`: whether the model writes it."""
        self.item_starts.append(now)
        if is_said and self.first_token_at is None:
            self.first_token_at = now

    def describe_items(self, response: Fields) -> list[Fields]:
        """Return the field `answer` of each item of `response`, a complete response object: `response_id`, `took_ms`
        (whole milliseconds until the next item began; None: not known) and `figures`.

        `figures` is None but for the last item, where it has those of the whole response: `model`, `usage` (None: the
        engine reported none), `first_token_ms` and `total_ms`, from the request on; None: not known.
        """
        count = len(response["output"])
        ends = [*self.item_starts[1:], self.ended_at]
        took: list[int | None] = [None] * count
        if len(self.item_starts) == count:
            took = [_milliseconds(*each) for each in zip(self.item_starts, ends, strict=True)] if count else []
        described: list[Fields] = [{"response_id": response["id"], "took_ms": each, "figures": None} for each in took]
        if described:
            described[-1]["figures"] = {
                "model": response["model"],
                "usage": response["usage"],
                "first_token_ms": _milliseconds(self.begun_at, self.first_token_at),
                "total_ms": _milliseconds(self.begun_at, self.ended_at),
            }
        return described


def _milliseconds(start: float, end: float | None) -> int | None:
    # The clock may be set back meanwhile.
    return None if end is None else max(0, round((end - start) * 1000))
