"""The requests whose clients are told of their progress, for what the clock has to tell them."""

from __future__ import annotations

from typing import Protocol

from gateway.admission.admission import Admission, QueuePlace, Ticket


class ProgressTeller(Protocol):
    """Tells one client of its request's progress."""

    def take_place(self, place: QueuePlace) -> None:
        """Note the request's place in the queue now."""

    def tell_due(self, now: float) -> None:
        """Send the comment that is due at monotonic time `now`, in seconds, if one is."""


class ProgressBoard:
    """Requests that told that they wait. Empty, and so without a cost, where no client asks for progress."""

    def __init__(self) -> None:
        self.tellers: set[ProgressTeller] = set()
        """Of requests that have not ended."""
        self.queued: dict[Ticket, ProgressTeller] = {}
        """Of these, the ones in the queue, by their tickets."""

    def run_due(self, admission: Admission, now: float) -> None:
        """Look at all places in the queue, and let every request tell what is due. `now`: monotonic seconds."""
        for model in {ticket.model for ticket in self.queued}:
            for ticket, place in admission.list_places(model):
                teller = self.queued.get(ticket)
                if teller is not None:
                    teller.take_place(place)
        for teller in list(self.tellers):
            teller.tell_due(now)
