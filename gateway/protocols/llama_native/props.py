"""GET /props of an engine, passed through but for what it says of a web page. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.common.json_dialect import JsonDialect
from gateway.protocols.common.request import InferenceRequest


class PropsDialect(JsonDialect):
    """Dialect of /props, passed through but for `ui`. Engines run without a web page of their own and answer `ui`
    false, for which llama.cpp's page would hide their models; the client gets true."""

    def get_body_converter(self, request: InferenceRequest) -> Callable[[bytes], bytes] | None:
        """Return the function that sets `ui` to true in an answer that has the field; other bodies pass unchanged.

        Never None.
        """
        return _show_in_page


PROPS: Final = PropsDialect()


def _show_in_page(body: bytes) -> bytes:
    with suppress(ValueError):
        fields = json.loads(body)
        if isinstance(fields, dict) and "ui" in fields:
            return json_bytes({**fields, "ui": True})
    return body
