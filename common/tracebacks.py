"""Errors that are kept, or passed on as values, without the frames that they came through."""

from __future__ import annotations

from typing import TypeVar

E = TypeVar("E", bound=BaseException)


def without_tracebacks(error: E) -> E:
    """The same error, from which no frame can be reached any more, nor from those that caused it.

    A frame that has the error in a variable makes a cycle with the error's traceback. Only the cyclic garbage collector
    frees that, and all that the frames hold, such as a request's body; and the gateway lets it run rarely.
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
