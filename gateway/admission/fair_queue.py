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
        account = self._shares.get(ticket.tenant) or self._opened(ticket.tenant)
        account.weight = ticket.weight
        if account.counter >= self._virtual:
            self._virtual = account.counter
        elif not account.waiting:
            account.counter = self._virtual
        ticket.share = account
        self._charge(account, ticket, cost)

    def join(self, ticket: Ticket) -> None:
        """`ticket` waits, behind its tenant's others of its rank."""
        account = self._shares.get(ticket.tenant) or self._opened(ticket.tenant)
        account.weight = ticket.weight
        ticket.share = account
        account.ranks[ticket.rank][ticket] = None
        account.waiting += 1
        self.waiting += 1
        if account.waiting == 1:
            account.counter = max(account.counter, self._virtual)
            self._turn += 1
            account.turn = self._turn
            self._push(account)

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
        account = ticket.share
        self._virtual = max(self._virtual, account.counter)
        self._charge(account, ticket, cost)

    def drop(self, ticket: Ticket) -> None:
        """`ticket` waits no longer."""
        account = ticket.share
        del account.ranks[ticket.rank][ticket]
        account.waiting -= 1
        self.waiting -= 1
        if not account.waiting:
            account.entry = None

    def left(self, ticket: Ticket, seconds: float) -> None:
        """`ticket` was inside for `seconds`."""
        account = ticket.share
        account.inside -= 1
        correction = (seconds - ticket.expected_s) / ticket.weight
        if correction:
            account.counter += correction
            self._greatest = max(self._greatest, account.counter)
            if account.waiting:
                self._push(account)

    def rest(self) -> None:
        """Nobody is inside or waits: there is nobody left to whom anybody could owe anything."""
        self._virtual = self._greatest

    def order(self, cost: float) -> Iterator[Ticket]:
        """Those that wait, in the order in which they would go if nobody came and each took `cost`."""
        tickets_by_account: dict[Share, Iterator[Ticket]] = {}
        for account in self._turns(cost):
            if account not in tickets_by_account:
                tickets_by_account[account] = chain.from_iterable(account.ranks)
            yield next(tickets_by_account[account])

    def position(self, ticket: Ticket, cost: float) -> int:
        """Which of `order`, from 1, a ticket is that has just joined."""
        account = ticket.share
        number = sum(len(rank) for rank in account.ranks[: ticket.rank + 1])
        if account.waiting == self.waiting:
            return number
        own_turns = 0
        for turn, next_account in enumerate(self._turns(cost), 1):
            own_turns += next_account is account
            if own_turns == number:
                return turn
        raise AssertionError(f"{ticket} does not wait")

    def by_tenant(self) -> dict[str, int]:
        """Tenant to tickets that wait; never holds a zero."""
        return {account.name: account.waiting for account in self._shares.values() if account.waiting}

    def _turns(self, cost: float) -> Iterator[Share]:
        heap = [(s.counter, s.turn, s, s.waiting) for s in self._shares.values() if s.waiting]  # no two turns are equal
        heapify(heap)
        turn = self._turn
        while heap:
            counter, _, account, waiting_count = heap[0]
            yield account
            if waiting_count == 1:
                heappop(heap)
            else:
                turn += 1
                heapreplace(heap, (counter + cost / account.weight, turn, account, waiting_count - 1))

    def _charge(self, account: Share, ticket: Ticket, cost: float) -> None:
        ticket.expected_s = cost
        ticket.weight = weight = account.weight  # by which it is corrected, too
        account.counter = counter = account.counter + cost / weight
        if counter > self._greatest:
            self._greatest = counter
        account.inside += 1
        self._turn = account.turn = self._turn + 1
        if account.waiting:
            self._push(account)

    def _push(self, account: Share) -> None:
        account.entry = (account.counter, account.turn, account)
        if len(self._heap) < 2 * len(self._shares) + _IDLE_KEPT:
            heappush(self._heap, account.entry)
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
        account = self._shares[tenant] = Share(tenant)
        return account
