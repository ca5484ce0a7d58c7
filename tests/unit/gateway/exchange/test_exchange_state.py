"""Every pair of states of an exchange, decided by hand."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from gateway.exchange.exchange import Exchange
from gateway.exchange.exchange_state import NEXT_STATES, WAITING_STATES, ExchangeState

# From a state in a row to a state in a column, in the order of the enum.
TABLE = """
             OPENED PREPARING QUEUED LOADING HELD SENT ANSWERING ENDED
OPENED       -      yes       -      -       -    -    -         yes
PREPARING    -      yes       yes    yes     yes  yes  -         yes
QUEUED       -      -         -      yes     yes  yes  -         yes
LOADING      -      -         yes    -       yes  yes  -         yes
HELD         -      -         -      -       yes  yes  -         yes
SENT         -      -         yes    yes     yes  yes  yes       yes
ANSWERING    -      -         yes    yes     yes  yes  -         yes
ENDED        -      -         -      -       -    -    -         -
"""
HEAD, *ROWS = [line.split() for line in TABLE.strip().splitlines()]
LEGAL = {(row[0], name) for row in ROWS for name, cell in zip(HEAD, row[1:], strict=True) if cell == "yes"}


def exchange_in(state: ExchangeState) -> Exchange:
    """An exchange of which only the state is there."""
    exchange: Any = Exchange.__new__(Exchange)
    exchange.state = state
    made: Exchange = exchange
    return made


def test_the_table_has_every_state() -> None:
    names = [state.name for state in ExchangeState]
    assert HEAD == [row[0] for row in ROWS] == names
    assert set(NEXT_STATES) == set(ExchangeState)


@pytest.mark.parametrize(("before", "after"), list(product(ExchangeState, repeat=2)), ids=lambda state: state.name)
def test_a_transition(before: ExchangeState, after: ExchangeState) -> None:
    exchange = exchange_in(before)
    if (before.name, after.name) in LEGAL:
        exchange.move_to(after)
        assert exchange.state is after
    else:
        with pytest.raises(AssertionError, match=f"{before.name} to {after.name}"):
            exchange.move_to(after)
        assert exchange.state is before


def test_whatever_waits_in_the_queue_can_be_given_a_slot_or_end() -> None:
    for state in WAITING_STATES:
        assert {ExchangeState.SENT, ExchangeState.ENDED} <= NEXT_STATES[state]


def test_every_state_leads_to_the_end() -> None:
    assert all(ExchangeState.ENDED in NEXT_STATES[state] for state in ExchangeState if state is not ExchangeState.ENDED)
