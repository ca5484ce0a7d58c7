"""The states of an exchange, and which may follow which. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final


class ExchangeState(IntEnum):
    """The state of one `Exchange`; `NEXT_STATES` has the legal transitions.

    Ints, because the hash of a plain enum is computed in Python at each look-up.
    """

    OPENED = 1
    """The headers are read; the body is not."""
    PREPARING = 2
    """The body is read. Hooks complete the request (files, stored history), and perhaps wait for that."""
    QUEUED = 3
    """The request waits in its model's queue for a slot."""
    LOADING = 4
    """The request waits in its model's queue, and the model for its load."""
    HELD = 5
    """The request has a slot. A `before_send` hook waits, and the engine has not been asked."""
    SENT = 6
    """An attempt is under way, and the engine has not begun to answer."""
    ANSWERING = 7
    """The engine answers."""
    ENDED = 8
    """Everything that the request held is given back."""


S = ExchangeState
_FROM_ADMISSION: Final = frozenset({S.QUEUED, S.LOADING, S.HELD, S.SENT, S.ENDED})
"""What admission may come to: a place in the queue, a slot, or a refusal."""
NEXT_STATES: Final[Mapping[ExchangeState, frozenset[ExchangeState]]] = {
    # The body comes; or the client leaves, or is refused by its headers.
    S.OPENED: frozenset({S.PREPARING, S.ENDED}),
    # A hook waits again after another; a hook answers by itself (ENDED).
    S.PREPARING: _FROM_ADMISSION | {S.PREPARING},
    # A new table unloads the model, or a slot is granted.
    S.QUEUED: frozenset({S.LOADING, S.HELD, S.SENT, S.ENDED}),
    # A new table has the model loaded, with or without a slot for the request; or the wait is over.
    S.LOADING: frozenset({S.QUEUED, S.HELD, S.SENT, S.ENDED}),
    # A second hook waits.
    S.HELD: frozenset({S.HELD, S.SENT, S.ENDED}),
    # The attempt failed before an answer, and admission is asked again.
    S.SENT: _FROM_ADMISSION | {S.ANSWERING},
    # The engine gave the request up for want of room before any part of the answer was passed on.
    S.ANSWERING: _FROM_ADMISSION,
    S.ENDED: frozenset(),
}
WAITING_STATES: Final = frozenset({S.QUEUED, S.LOADING})
"""The request is in its model's queue."""
