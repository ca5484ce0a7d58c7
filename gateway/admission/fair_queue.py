"""Who of those that wait for one model goes next. Pure.

A tenant's counter is the service that it received, in slot-seconds over its weight; the tenant with the least counter
goes next. What a request will take is not known when it goes in, so it is charged the expected time then, and the
difference when it is out ("Fairness in Serving Large Language Models", Sheng et al., 2024). A tenant that comes to wait
is lifted to the virtual time, the counter of whoever went in last (start-time fair queueing), so nobody saves up a
claim by asking for less than it could have.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain
from typing import Final

from gateway.admission.ticket import Entry, Share, Ticket

_IDLE_KEPT: Final = 64
"""Tenants that are remembered without a look at who of them is idle."""


class FairQueue:
    """The tickets that wait for one model, and the accounts of all who use it."""

    __slots__ = ("_greatest", "_heap", "_keep", "_shares", "_turn", "_virtual", "waiting")

    def __init__(self) -> None:
        self._shares: dict[str, Share] = {}
        self._heap: list[Entry] = []
        self._turn = 0
        self._virtual = 0.0
        self._greatest = 0.0
        self._keep = _IDLE_KEPT
        self.waiting = 0
        """How many tickets."""

    def enter(self, ticket: Ticket, cost: float) -> None:
        """`ticket` goes in without waiting; `cost` is the expected slot time in seconds."""
        share = self._shares.get(ticket.tenant) or self._opened(ticket.tenant)
        share.weight = ticket.weight
        if share.counter >= self._virtual:
            self._virtual = share.counter
        elif not share.waiting:
            share.counter = self._virtual
        ticket.share = share
        self._charge(share, ticket, cost)

    def join(self, ticket: Ticket) -> None:
        """`ticket` waits, behind its tenant's others of its rank."""
        share = self._shares.get(ticket.tenant) or self._opened(ticket.tenant)
        share.weight = ticket.weight
        ticket.share = share
        share.ranks[ticket.rank][ticket] = None
        share.waiting += 1
        self.waiting += 1
        if share.waiting == 1:
            share.counter = max(share.counter, self._virtual)
            self._turn += 1
            share.turn = self._turn
            self._push(share)

    def join_in_front(self, ticket: Ticket) -> None:
        """`ticket` waits, in front of all its tenant's others."""
        ticket.rank = 0
        self.join(ticket)
        ticket.share.ranks[0].move_to_end(ticket, last=False)

    def first(self) -> Ticket:
        """Whose turn it is. Somebody must be waiting."""
        heap = self._heap
        while heap[0][2].entry is not heap[0]:
            heappop(heap)
        return next(chain.from_iterable(heap[0][2].ranks))

    def take(self, ticket: Ticket, cost: float) -> None:
        """`ticket`, which waited, goes in."""
        self.drop(ticket)
        share = ticket.share
        self._virtual = max(self._virtual, share.counter)
        self._charge(share, ticket, cost)

    def drop(self, ticket: Ticket) -> None:
        """`ticket` waits no longer."""
        share = ticket.share
        del share.ranks[ticket.rank][ticket]
        share.waiting -= 1
        self.waiting -= 1
        if not share.waiting:
            share.entry = None

    def left(self, ticket: Ticket, seconds: float) -> None:
        """`ticket` was inside for `seconds`."""
        share = ticket.share
        share.inside -= 1
        more = (seconds - ticket.expected_s) / ticket.weight
        if more:
            share.counter += more
            self._greatest = max(self._greatest, share.counter)
            if share.waiting:
                self._push(share)

    def rest(self) -> None:
        """Nobody is inside or waits: there is nobody left to whom anybody could owe anything."""
        self._virtual = self._greatest

    def order(self, cost: float) -> Iterator[Ticket]:
        """Those that wait, in the order in which they would go if nobody came and each took `cost`."""
        lines: dict[Share, Iterator[Ticket]] = {}
        for share in self._turns(cost):
            if share not in lines:
                lines[share] = chain.from_iterable(share.ranks)
            yield next(lines[share])

    def position(self, ticket: Ticket, cost: float) -> int:
        """Which of `order`, from 1, a ticket is that has just joined."""
        share = ticket.share
        number = sum(len(rank) for rank in share.ranks[: ticket.rank + 1])
        if share.waiting == self.waiting:
            return number
        before = 0
        for turn, each in enumerate(self._turns(cost), 1):
            before += each is share
            if before == number:
                return turn
        raise AssertionError(f"{ticket} does not wait")

    def by_tenant(self) -> dict[str, int]:
        """Tenant to tickets that wait; never holds a zero."""
        return {share.name: share.waiting for share in self._shares.values() if share.waiting}

    def _turns(self, cost: float) -> Iterator[Share]:
        line = [(s.counter, s.turn, s, s.waiting) for s in self._shares.values() if s.waiting]  # no two turns are equal
        heapify(line)
        turn = self._turn
        while line:
            counter, _, share, left = line[0]
            yield share
            if left == 1:
                heappop(line)
            else:
                turn += 1
                heapreplace(line, (counter + cost / share.weight, turn, share, left - 1))

    def _charge(self, share: Share, ticket: Ticket, cost: float) -> None:
        ticket.expected_s = cost
        ticket.weight = weight = share.weight  # by which it is corrected, too
        share.counter = counter = share.counter + cost / weight
        if counter > self._greatest:
            self._greatest = counter
        share.inside += 1
        self._turn = share.turn = self._turn + 1
        if share.waiting:
            self._push(share)

    def _push(self, share: Share) -> None:
        share.entry = (share.counter, share.turn, share)
        if len(self._heap) < 2 * len(self._shares) + _IDLE_KEPT:
            heappush(self._heap, share.entry)
        else:  # mostly entries that count no longer
            self._heap = [each.entry for each in self._shares.values() if each.entry]
            heapify(self._heap)

    def _opened(self, tenant: str) -> Share:
        if len(self._shares) >= self._keep:
            # Who owes nothing is as good as new: it would be lifted to the virtual time when it comes.
            self._shares = {
                name: each
                for name, each in self._shares.items()
                if each.inside or each.waiting or each.counter > self._virtual
            }
            self._keep = max(_IDLE_KEPT, 2 * len(self._shares))
        share = self._shares[tenant] = Share(tenant)
        return share
