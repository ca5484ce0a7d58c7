"""Tokens that two programs share, each in a file. One of the programs makes it once; from then on the content of the
file counts.
"""

from __future__ import annotations

import hmac
import logging
import re
import secrets
from pathlib import Path
from typing import Final

from common.atomic_write import narrow_file, write_atomic

log = logging.getLogger(__name__)


TOKEN_BYTES: Final = 32


class SharedToken:
    """The token in a file, for the program that makes the token and compares it with what callers show; the other
    program uses `common.shared_token.read_token`. The file is read for each comparison, so that a replaced token is in
    force at once. Nothing is read or made before the first call of a method."""

    def __init__(self, path: Path, name: str) -> None:
        """`name`: what the log calls the token, such as `the gateways' token`."""
        self._path = path
        self._name = name
        self._is_failure_logged = False

    def ensure_token(self) -> str | None:
        """Return the token of the file. If the file is missing or holds no valid token, make one and store it: the
        folder is made if it is missing, and only the file's owner may read the file. That is this user, or for root
        the owner of the folder, so that a program of that user can read what root has made.

        An existing file that every user may read is narrowed first; see `narrow_file`.

        None: the token could not be stored, so that nobody could show it. That raises nothing; the first of several
        failures in a row is logged as a warning. Blocks.
        """
        if (token := read_token(self._path)) is not None:
            narrow_file(self._path)
            return token
        token = secrets.token_urlsafe(TOKEN_BYTES)
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomic(self._path, f"{token}\n".encode(), is_given_to_owner=True)
        except OSError as error:
            if not self._is_failure_logged:
                reason = error.strerror or error
                log.warning("%s cannot be made, and nobody is let in: %s: %s", self._name, self._path, reason)
            self._is_failure_logged = True
            return None
        log.info("made %s: %s", self._name, self._path)
        self._is_failure_logged = False
        return token

    def matches(self, shown_token: bytes) -> bool:
        """Return whether `shown_token` is the token of the file. A missing or invalid token is made first, as
        `ensure_token` does, and then nothing matches it. False also if no token can be stored. The comparison takes
        constant time. Blocks."""
        token = self.ensure_token()
        return token is not None and hmac.compare_digest(token.encode(), shown_token)


_TOKEN: Final = re.compile(r"[!-~]{16,512}", re.ASCII)


def read_token(path: Path) -> str | None:
    """Read the token in a file, without the white space around it. None: the file is missing, cannot be read, or does
    not hold 16 to 512 printable ASCII characters without a space. Never raises. Blocks for the time of the read."""
    try:
        text = path.read_text("ascii").strip()
    except (OSError, ValueError):
        return None
    return text if _TOKEN.fullmatch(text) else None
