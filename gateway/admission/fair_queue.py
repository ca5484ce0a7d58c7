"""Order of the tickets that wait for one model: fair queueing over tenants. Pure.

Each tenant has a counter: the slot-seconds that the tenant received, divided by its weight. The tenant with the lowest
counter goes next. How long a request takes is unknown when it enters a replica, so the tenant is charged the expected
time then, and the difference when the request leaves ("Fairness in Serving Large Language Models", Sheng et al., 2024).
A tenant that begins to wait has its counter raised to the virtual time, the counter of the tenant that entered last
(start-time fair queueing), so no tenant saves up credit by asking for less than its share.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain
from typing import Final

from gateway.admission.ticket import HeapEntry, TenantAccount, Ticket

_IDLE_KEPT: Final = 64
"""Number of accounts from which idle ones are searched for and dropped."""


class FairQueue:
    """The tickets that wait for one model, and the accounts of all tenants that use the model.

    Only orders and charges tickets: `ModelQueue`, the only caller, decides which enter and sets their states.
    """

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
        """Number of waiting tickets."""

    def charge_entry(self, ticket: Ticket, cost: float) -> None:
        """Charge the tenant of a ticket that enters without waiting.

        Sets the ticket's `account`, and its tenant's weight to the ticket's. `cost`: expected seconds in each of its
        slots; `settle_slot_time` corrects the charge when the ticket leaves.
        """
        account = self._accounts.get(ticket.tenant) or self._open_account(ticket.tenant)
        account.weight = ticket.weight
        if account.counter >= self._virtual_time:
            self._virtual_time = account.counter
        elif not account.waiting_count:
            account.counter = self._virtual_time
        ticket.account = account
        self._charge(account, ticket, cost)

    def add_ticket(self, ticket: Ticket) -> None:
        """Queue `ticket` behind its tenant's tickets of the same rank. No limit of the queue applies. Sets the ticket's
        `account`, and its tenant's weight to the ticket's."""
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
        """Queue `ticket` in front of all other tickets of its tenant. Sets its rank to 0, the priority rank. Otherwise
        as `add_ticket`."""
        ticket.rank = 0
        self.add_ticket(ticket)
        ticket.account.ranks[0].move_to_end(ticket, last=False)

    def next_ticket(self) -> Ticket:
        """Return the waiting ticket whose turn it is, and leave it in the queue.

        Raises:
            IndexError: no ticket is waiting.
        """
        heap = self._heap
        while heap[0][2].entry is not heap[0]:
            heappop(heap)
        return next(chain.from_iterable(heap[0][2].ranks))

    def take_ticket(self, ticket: Ticket, cost: float) -> None:
        """Remove a waiting ticket that enters a replica, and charge its tenant. `cost`: as in `charge_entry`.

        Raises:
            KeyError: the ticket has left the queue already.
        """
        self.drop_ticket(ticket)
        account = ticket.account
        self._virtual_time = max(self._virtual_time, account.counter)
        self._charge(account, ticket, cost)

    def drop_ticket(self, ticket: Ticket) -> None:
        """Remove a waiting ticket without a charge.

        Raises:
            KeyError: the ticket has left the queue already.
        """
        account = ticket.account
        del account.ranks[ticket.rank][ticket]
        account.waiting_count -= 1
        self.waiting_count -= 1
        if not account.waiting_count:
            account.entry = None

    def settle_slot_time(self, ticket: Ticket, seconds: float) -> None:
        """Correct the tenant's charge for `ticket`, which leaves its replica now after `seconds` inside.

        Call once for each time that `charge_entry` or `take_ticket` has charged the ticket.
        """
        account = ticket.account
        account.inflight -= 1
        correction = (seconds - ticket.expected_s) * ticket.slots / ticket.weight
        if correction:
            account.counter += correction
            self._greatest_counter = max(self._greatest_counter, account.counter)
            if account.waiting_count:
                self._push(account)

    def reset_accounts(self) -> None:
        """Make all tenants equal again: what they received so far no longer counts.

        Call when no ticket of the model is inside or waits.
        """
        self._virtual_time = self._greatest_counter

    def queue_order(self, cost: float) -> Iterator[Ticket]:
        """Yield the waiting tickets in the order in which they enter if none is added and each takes `cost` seconds.

        The queue must not change during the iteration.
        """
        heap = [
            (each.counter, each.turn, each, chain.from_iterable(each.ranks), each.waiting_count)
            for each in self._accounts.values()
            if each.waiting_count
        ]  # turns are unique, so accounts are never compared
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
        """Return the position, from 1, in `queue_order(cost)` of a ticket that `add_ticket` has just added.

        Raises:
            AssertionError: the ticket does not wait. Not checked where only one tenant has waiting tickets.
        """
        account = ticket.account
        number = sum(len(rank) for rank in account.ranks[: ticket.rank + 1])
        if account.waiting_count == self.waiting_count:
            return number
        for turn, next_ticket in enumerate(self.queue_order(cost), 1):
            if next_ticket is ticket:
                return turn
        raise AssertionError(f"{ticket} does not wait")

    def waiting_by_tenant(self) -> dict[str, int]:
        """Return the number of waiting tickets by tenant; tenants with none are absent."""
        return {account.name: account.waiting_count for account in self._accounts.values() if account.waiting_count}

    def _charge(self, account: TenantAccount, ticket: Ticket, cost: float) -> None:
        ticket.expected_s = cost
        ticket.weight = weight = account.weight  # `settle_slot_time` corrects the charge by the same weight
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
        else:  # most entries are outdated
            self._heap = [each.entry for each in self._accounts.values() if each.entry]
            heapify(self._heap)

    def _open_account(self, tenant: str) -> TenantAccount:
        if len(self._accounts) >= self._prune_threshold:
            # An account at or below the virtual time equals a new one, which is raised to the virtual time.
            self._accounts = {
                name: each
                for name, each in self._accounts.items()
                if each.inflight or each.waiting_count or each.counter > self._virtual_time
            }
            self._prune_threshold = max(_IDLE_KEPT, 2 * len(self._accounts))
        account = self._accounts[tenant] = TenantAccount(tenant)
        return account
