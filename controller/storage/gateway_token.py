"""The file with the gateways' token. The controller makes it once; from then on the content of the file counts."""

from __future__ import annotations

import hmac
import logging
import secrets
from pathlib import Path
from typing import Final

from common.gateway_token import FILE_VARIABLE, read_token
from controller.storage.atomic_write import write_atomic

log = logging.getLogger(__name__)

TOKEN_BYTES: Final = 32
READABLE_BY_ALL: Final = 0o644
"""A gateway may run as another user, to whom the controller may not give files: the folder is the guard."""


class GatewayToken:
    """The token that gateways show to the controller, in a file. The controller has one object. The file is read for
    each comparison, so that a replaced token is in force at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_failure_logged = False

    def ensure_token(self) -> str | None:
        """Return the token of the file; if the file is missing or has none, make a token and store it. None: it could
        not be stored, so that no gateway could show it. That raises nothing; a warning is logged once. The folder is
        made if it is missing, and every user may read the file. Blocks."""
        if (token := read_token(self._path)) is not None:
            return token
        token = secrets.token_urlsafe(TOKEN_BYTES)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self._path, f"{token}\n".encode(), mode=READABLE_BY_ALL)
        except OSError as error:
            if not self._is_failure_logged:
                reason = error.strerror or error
                log.warning("no gateway is let in: %s (%s) cannot be written: %s", self._path, FILE_VARIABLE, reason)
            self._is_failure_logged = True
            return None
        log.info("made the gateways' token: %s", self._path)
        self._is_failure_logged = False
        return token

    def matches(self, shown_token: bytes) -> bool:
        """Return whether `shown_token` is the token of the file, as `ensure_token` returns it: a missing file is made.
        False if there is no token. The comparison takes constant time. Blocks."""
        token = self.ensure_token()
        return token is not None and hmac.compare_digest(token.encode(), shown_token)
