"""What an operator is told of a gateway that refuses everybody, since no keys are declared."""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)


class KeylessWarning:
    """Logs it when the first table has no keys, and whenever a later one has none any more."""

    def __init__(self, host: str, *, serves_everybody: bool) -> None:
        """`host` is the setting; `serves_everybody`: whether anybody is served while no keys are declared."""
        self._host = host
        self._serves_everybody = serves_everybody
        self._is_told = False

    def follow_keys(self, *, has_keys: bool) -> None:
        """Take what the table in force says."""
        if not has_keys and not self._is_told and not self._serves_everybody:
            log.warning(
                "no keys are declared, and %s is not loopback: every request is refused; `roundhouse key new NAME >"
                " desired-state/key-NAME.yaml` declares a key",
                self._host,
            )
        self._is_told = not has_keys
