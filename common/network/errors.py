"""Errors of checked connections."""

from __future__ import annotations


class AddressRefusedError(Exception):
    """A host must not be connected to. The message names the host and the reason."""


class UnreadableAnswerError(Exception):
    """An answer cannot be read: it is too large, compressed, nested too deep, or no JSON. The text says which, as a
    clause without a full stop."""


class InterruptedConnectionError(Exception):
    """The connections were ended from this side, by `CheckedBackend.interrupt`."""
