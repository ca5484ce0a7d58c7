"""Masks the secrets of model definitions and loads in logs and messages. Only this place knows all secrets.

An engine may print the secrets it was started with long after the files have changed, so the secrets of earlier
definitions are remembered as long as the controller lives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

from controller.redaction.patterns import collect_secrets, mask_field, replace_secrets

REMEMBERED: Final = 200
"""Secrets remembered per model. The oldest are forgotten first; those of the current definition always stay."""


class Redact(Protocol):
    """Signature of a function that masks a model's secrets in a text; `Redactor.redact_text` is one. `replica` names
    the replica whose engine wrote the text; None: no engine wrote it."""

    def __call__(self, model: str, text: str, replica: str | None = None) -> str:
        """Return `text` with the known secrets of `model` masked, and with the bearer token of `replica` masked if that
        is given. A model that is not known has no secrets. Never raises."""


def redact_nothing(model: str, text: str, replica: str | None = None) -> str:
    """Return the text unchanged. Use it where engines know no secrets, as in tests."""
    del model, replica
    return text


def redact_words(words: Iterable[str], redact: Callable[[str], str]) -> list[str]:
    """Return a command line's words with their secrets masked: those that the words themselves mark as secret, and
    those that `redact` knows."""
    # The whole list at once: whether a word is secret may depend on the word before it.
    safe = mask_field("argv", list(words))
    assert isinstance(safe, list)
    return [redact(str(word)) for word in safe]


class Redactor:
    """Knows the secrets of one controller's models, and masks them in logs, errors and answers. A controller has one,
    for its whole life; it learns of each new definition and load by `learn_secrets`."""

    def __init__(self, token: Callable[[str], str]) -> None:
        """`token` returns the bearer token of a replica, by the replica's name."""
        self._token = token
        self._secrets_by_model: dict[str, dict[str, None]] = {}

    def learn_secrets(self, fields_by_model: Mapping[str, Mapping[str, Any]]) -> None:
        """Remember the secrets in `fields_by_model`: each model's declared fields, or those that a load sets. Secrets
        learned earlier stay, up to 200 (`REMEMBERED`) per model; models that are not in `fields_by_model` keep
        theirs."""
        for model, fields in fields_by_model.items():
            known_secrets = self._secrets_by_model.setdefault(model, {})
            current_secrets = collect_secrets(fields)
            for secret in sorted(current_secrets):
                known_secrets.pop(secret, None)
                known_secrets[secret] = None
            for oldest_secret in list(known_secrets)[: -max(REMEMBERED, len(current_secrets))]:
                del known_secrets[oldest_secret]

    def redact_text(self, model: str, text: str, replica: str | None = None) -> str:
        """Return the text with those secrets masked that `learn_secrets` was told of for the model, and with the bearer
        token of `replica` masked if that is given. Never raises.

        Not masked are: secrets of other models, secrets that are too short to be told from other text, and values of
        `env` whose name suggests no secret and which do not look random (see `collect_secrets`).
        """
        return replace_secrets(text, self._known_secrets(model, replica))

    def _known_secrets(self, model: str, replica: str | None) -> frozenset[str]:
        secrets = frozenset(self._secrets_by_model.get(model, ()))
        return secrets if replica is None else secrets | {self._token(replica)}

    def with_proposed(self, fields_by_model: Mapping[str, Mapping[str, Any]]) -> Redact:
        """Return a function like `redact_text` that also masks the secrets in these fields, without remembering them.

        Use it for definitions that somebody only proposes, as in a dry run.
        """
        proposed_secrets = {model: collect_secrets(fields) for model, fields in fields_by_model.items()}

        def redact_text(model: str, text: str, replica: str | None = None) -> str:
            return replace_secrets(text, self._known_secrets(model, replica) | proposed_secrets.get(model, frozenset()))

        return redact_text
