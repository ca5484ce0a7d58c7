"""Keeping exceptions as values without keeping the frames that they passed through."""

from __future__ import annotations

from typing import TypeVar

E = TypeVar("E", bound=BaseException)


def without_tracebacks(error: E) -> E:
    """Remove the tracebacks of an error, its causes and its contexts, in place. Return the same error.

    A frame with the error in a variable makes a cycle with the error's traceback. Only the cyclic garbage collector
    frees that cycle and all that the frames hold, such as a request's body, and the gateway runs it rarely.
    """
    pending: list[BaseException | None] = [error]
    seen: set[int] = set()
    while pending:
        each = pending.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = None
            pending += (each.__cause__, each.__context__)
    return error
