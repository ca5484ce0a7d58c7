"""The requests whose clients asked for progress comments, so that the clock can send those that are due."""

from __future__ import annotations

from typing import Protocol

from gateway.admission.admission import Admission, QueuePlace, Ticket


class ProgressTeller(Protocol):
    """Sends one client the progress comments of its request. Implemented by `progress_hooks.ProgressRun`."""

    def take_place(self, place: QueuePlace) -> None:
        """Take the request's place in the queue as it is now, and send the client a comment if the change is due.

        Does nothing if the place is unchanged. Called only while the request is in `ProgressBoard.queued`.
        """

    def tell_due(self, now: float) -> None:
        """Send the comment that was held back and is due at `now` (monotonic seconds); do nothing if none is.

        Once the answer has begun, no comment is sent any more.
        """


class ProgressBoard:
    """The requests of a gateway whose clients asked for progress comments (`X-Progress`). `Services.progress`.

    `ProgressRun` adds and removes them; the dispatcher's timer calls `run_due`.
    """

    def __init__(self) -> None:
        self.tellers: set[ProgressTeller] = set()
        """One for each such request, from its preparation to its end."""
        self.queued: dict[Ticket, ProgressTeller] = {}
        """Those of `tellers` whose request waits in the queue, by the request's ticket."""

    def run_due(self, admission: Admission, now: float) -> None:
        """Tell each queued request its present place in `admission`, and send all comments that are due.

        Call about twice a second. `now`: monotonic seconds.
        """
        for model in {ticket.model for ticket in self.queued}:
            for ticket, place in admission.list_places(model):
                teller = self.queued.get(ticket)
                if teller is not None:
                    teller.take_place(place)
        for teller in list(self.tellers):
            teller.tell_due(now)
