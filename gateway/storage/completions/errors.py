"""What requests about stored chat completions are refused with. Pure."""

from __future__ import annotations

from controller.schema.errors import RoundhouseError


def completion_not_found(completion_id: str) -> RoundhouseError:
    """There is no such completion for the tenant."""
    message = f"Chat completion with id {completion_id!r:.100} not found."
    return RoundhouseError("completion_not_found", message, param="completion_id")
