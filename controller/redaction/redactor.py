"""Keeps secrets of definitions and loads out of what is said of models: the one place that knows what is secret.

An engine may print what it was started with long after the files say something else, so secrets of earlier definitions
are remembered as long as the controller lives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from controller.redaction.patterns import collect_secrets, replace_secrets

REMEMBERED: Final = 200
"""Secrets per model; the oldest are forgotten first."""


class Redact(Protocol):
    """Hides secrets in a text about a model; `replica` names the engine that wrote it, if one did."""

    def __call__(self, model: str, text: str, replica: str | None = None) -> str:
        """The text as it may be shown."""


def redact_nothing(model: str, text: str, replica: str | None = None) -> str:
    """For hosts whose engines know no secrets."""
    del model, replica
    return text


class Redactor:
    """What one controller knows to be secret. `token` gives a replica's own."""

    def __init__(self, token: Callable[[str], str]) -> None:
        self._token = token
        self._secrets_by_model: dict[str, dict[str, None]] = {}

    def learn_secrets(self, fields_by_model: Mapping[str, Mapping[str, Any]]) -> None:
        """Take note of the secrets of fields, by model: what the files declare, or what a load sets."""
        for model, fields in fields_by_model.items():
            known_secrets = self._secrets_by_model.setdefault(model, {})
            current_secrets = collect_secrets(fields)
            for secret in sorted(current_secrets):
                known_secrets.pop(secret, None)
                known_secrets[secret] = None
            for oldest_secret in list(known_secrets)[: -max(REMEMBERED, len(current_secrets))]:
                del known_secrets[oldest_secret]

    def redact_text(self, model: str, text: str, replica: str | None = None) -> str:
        """The text as it may be shown."""
        return replace_secrets(text, self._known_secrets(model, replica))

    def _known_secrets(self, model: str, replica: str | None) -> frozenset[str]:
        secrets = frozenset(self._secrets_by_model.get(model, ()))
        return secrets if replica is None else secrets | {self._token(replica)}

    def with_proposed(self, fields_by_model: Mapping[str, Mapping[str, Any]]) -> Redact:
        """The same, and the secrets of what somebody only proposes, which are not remembered."""
        proposed_secrets = {model: collect_secrets(fields) for model, fields in fields_by_model.items()}

        def redact_text(model: str, text: str, replica: str | None = None) -> str:
            return replace_secrets(text, self._known_secrets(model, replica) | proposed_secrets.get(model, frozenset()))

        return redact_text
