"""Secrets in messages between programs: only JSON holds them in plain text."""

from __future__ import annotations

from typing import Annotated

from pydantic import PlainSerializer, SecretStr


def _reveal_secret(secret: SecretStr) -> str:
    return secret.get_secret_value()


# Only the link between controller and gateways transports the secret itself; repr and logs mask it.
Token = Annotated[SecretStr, PlainSerializer(_reveal_secret, when_used="json")]
"""A bearer token or another secret. JSON holds it in plain text; `repr` and `str` mask it."""
