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

from gateway.admission.ticket import HeapEntry, TenantAccount, Ticket

_IDLE_KEPT: Final = 64
"""Tenants that are remembered without a look at who of them is idle."""


class FairQueue:
    """The tickets that wait for one model, and the accounts of all who use it."""

    __slots__ = (
        "_accounts",
        "_greatest_counter",
        "_heap",
        "_prune_threshold",
        "_turn",
        "_virtual_time",
        "waiting_count",
    )

    def __init__(self) -> None:
        self._accounts: dict[str, TenantAccount] = {}
        self._heap: list[HeapEntry] = []
        self._turn = 0
        self._virtual_time = 0.0
        self._greatest_counter = 0.0
        self._prune_threshold = _IDLE_KEPT
        self.waiting_count = 0
        """How many tickets."""

    def charge_entry(self, ticket: Ticket, cost: float) -> None:
        """`ticket` goes in without waiting; `cost` is the expected time in seconds, in each of its slots."""
        account = self._accounts.get(ticket.tenant) or self._open_account(ticket.tenant)
        account.weight = ticket.weight
        if account.counter >= self._virtual_time:
            self._virtual_time = account.counter
        elif not account.waiting_count:
            account.counter = self._virtual_time
        ticket.account = account
        self._charge(account, ticket, cost)

    def add_ticket(self, ticket: Ticket) -> None:
        """`ticket` waits, behind its tenant's others of its rank."""
        account = self._accounts.get(ticket.tenant) or self._open_account(ticket.tenant)
        account.weight = ticket.weight
        ticket.account = account
        account.ranks[ticket.rank][ticket] = None
        account.waiting_count += 1
        self.waiting_count += 1
        if account.waiting_count == 1:
            account.counter = max(account.counter, self._virtual_time)
            self._turn += 1
            account.turn = self._turn
            self._push(account)

    def add_ticket_in_front(self, ticket: Ticket) -> None:
        """`ticket` waits, in front of all its tenant's others."""
        ticket.rank = 0
        self.add_ticket(ticket)
        ticket.account.ranks[0].move_to_end(ticket, last=False)

    def next_ticket(self) -> Ticket:
        """Whose turn it is. Somebody must be waiting."""
        heap = self._heap
        while heap[0][2].entry is not heap[0]:
            heappop(heap)
        return next(chain.from_iterable(heap[0][2].ranks))

    def take_ticket(self, ticket: Ticket, cost: float) -> None:
        """`ticket`, which waited, goes in."""
        self.drop_ticket(ticket)
        account = ticket.account
        self._virtual_time = max(self._virtual_time, account.counter)
        self._charge(account, ticket, cost)

    def drop_ticket(self, ticket: Ticket) -> None:
        """`ticket` waits no longer."""
        account = ticket.account
        del account.ranks[ticket.rank][ticket]
        account.waiting_count -= 1
        self.waiting_count -= 1
        if not account.waiting_count:
            account.entry = None

    def settle_slot_time(self, ticket: Ticket, seconds: float) -> None:
        """`ticket` was inside for `seconds`."""
        account = ticket.account
        account.inflight -= 1
        correction = (seconds - ticket.expected_s) * ticket.slots / ticket.weight
        if correction:
            account.counter += correction
            self._greatest_counter = max(self._greatest_counter, account.counter)
            if account.waiting_count:
                self._push(account)

    def reset_accounts(self) -> None:
        """Nobody is inside or waits: there is nobody left to whom anybody could owe anything."""
        self._virtual_time = self._greatest_counter

    def queue_order(self, cost: float) -> Iterator[Ticket]:
        """Those that wait, in the order in which they would go if nobody came and each took `cost`."""
        heap = [
            (each.counter, each.turn, each, chain.from_iterable(each.ranks), each.waiting_count)
            for each in self._accounts.values()
            if each.waiting_count
        ]  # no two turns are equal
        heapify(heap)
        turn = self._turn
        while heap:
            counter, _, account, tickets, waiting_count = heap[0]
            ticket = next(tickets)
            yield ticket
            if waiting_count == 1:
                heappop(heap)
            else:
                turn += 1
                counter += cost * ticket.slots / account.weight
                heapreplace(heap, (counter, turn, account, tickets, waiting_count - 1))

    def queue_position(self, ticket: Ticket, cost: float) -> int:
        """Which of `order`, from 1, a ticket is that has just joined."""
        account = ticket.account
        number = sum(len(rank) for rank in account.ranks[: ticket.rank + 1])
        if account.waiting_count == self.waiting_count:
            return number
        for turn, next_ticket in enumerate(self.queue_order(cost), 1):
            if next_ticket is ticket:
                return turn
        raise AssertionError(f"{ticket} does not wait")

    def waiting_by_tenant(self) -> dict[str, int]:
        """Tenant to tickets that wait; never holds a zero."""
        return {account.name: account.waiting_count for account in self._accounts.values() if account.waiting_count}

    def _charge(self, account: TenantAccount, ticket: Ticket, cost: float) -> None:
        ticket.expected_s = cost
        ticket.weight = weight = account.weight  # by which it is corrected, too
        account.counter = counter = account.counter + cost * ticket.slots / weight
        if counter > self._greatest_counter:
            self._greatest_counter = counter
        account.inflight += 1
        self._turn = account.turn = self._turn + 1
        if account.waiting_count:
            self._push(account)

    def _push(self, account: TenantAccount) -> None:
        account.entry = (account.counter, account.turn, account)
        if len(self._heap) < 2 * len(self._accounts) + _IDLE_KEPT:
            heappush(self._heap, account.entry)
        else:  # mostly entries that count no longer
            self._heap = [each.entry for each in self._accounts.values() if each.entry]
            heapify(self._heap)

    def _open_account(self, tenant: str) -> TenantAccount:
        if len(self._accounts) >= self._prune_threshold:
            # Who owes nothing is as good as new: it would be lifted to the virtual time when it comes.
            self._accounts = {
                name: each
                for name, each in self._accounts.items()
                if each.inflight or each.waiting_count or each.counter > self._virtual_time
            }
            self._prune_threshold = max(_IDLE_KEPT, 2 * len(self._accounts))
        account = self._accounts[tenant] = TenantAccount(tenant)
        return account
