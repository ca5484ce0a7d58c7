"""What a failed connection is to the client of Roundhouse."""

from __future__ import annotations

from typing import Final

import httpx2

from common.network.errors import AddressRefusedError, UnreadableAnswerError
from controller.schema.errors import RoundhouseError

FAILURES: Final = (
    AddressRefusedError,
    httpx2.HTTPError,
    httpx2.InvalidURL,
    UnreadableAnswerError,
    # Of an answer that is not what it should be.
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What asking a source may raise."""


def describe_failure(error: Exception, source: str) -> RoundhouseError:
    """Return the RoundhouseError for a failure of asking `source`; the caller raises it. `error`: one of `FAILURES`.
    `source`: how the message names the source (`the hub`). The code is `source_address_refused`, `source_unavailable`,
    or `source_mismatch` for an answer that cannot be read. Neither the query of an address nor a header is in the
    message."""
    if isinstance(error, AddressRefusedError):
        return RoundhouseError("source_address_refused", f"{error}.")
    if isinstance(error, httpx2.TooManyRedirects):
        return RoundhouseError("source_unavailable", f"No end of redirects at {source}.")
    if isinstance(error, httpx2.HTTPError | httpx2.InvalidURL):
        return RoundhouseError("source_unavailable", f"No connection to {source}: {error or type(error).__name__}.")
    reason = f": {error}" if isinstance(error, UnreadableAnswerError) else f" ({type(error).__name__})"
    return RoundhouseError("source_mismatch", f"The answer of {source} cannot be read{reason}.")
