"""Errors of checked connections."""

from __future__ import annotations


class AddressRefusedError(Exception):
    """A host must not be connected to. The message names the host and the reason."""


class InterruptedConnectionError(Exception):
    """The connections were ended from this side, by `CheckedBackend.interrupt`."""
