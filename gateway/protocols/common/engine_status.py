"""Which status an engine's error answer becomes. Pure."""

from __future__ import annotations

from typing import Final

from controller.schema.errors import ERROR_CODES

ENGINE_ERROR: Final = ERROR_CODES["engine_error"]


def client_status(engine_status: int) -> int:
    """The status that the client gets. A redirect is not followed, because it would carry the prompt elsewhere."""
    return engine_status if engine_status >= 400 or 200 <= engine_status < 300 else ENGINE_ERROR.status
