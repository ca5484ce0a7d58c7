"""Names for calls of tools."""

from __future__ import annotations

import uuid


def call_id() -> str:
    """Nine letters and digits: what Mistral's templates insist on, and others take."""
    return uuid.uuid4().hex[:9]
