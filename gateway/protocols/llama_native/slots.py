"""`POST /slots/{id}`: a slot's cache is saved into a file, restored or erased, as llama.cpp does it."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qs

from controller.schema.errors import RoundhouseError
from controller.schema.routing import ModelRoute
from gateway.protocols.common.json_dialect import JsonDialect
from gateway.protocols.common.request import InferenceRequest

_FILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_ACTIONS: Final = ("save", "restore", "erase")


class SlotsDialect(JsonDialect):
    """Dialect of /slots/{id}. A file's name is checked here, too, so that it is never a path, whatever the engine
    makes of it."""

    def check_request(self, request: InferenceRequest, route: ModelRoute) -> None:
        """Refuse an unknown `action` in the query of `request.target`, and, unless it is `erase`, a `filename` that is
        missing or no plain name.

        Raises:
            RoundhouseError: `invalid_request`, with `action` or `filename` as `param`; the code of a capability that
                the model lacks; or `invalid_json`: a string of a large body is not valid.
        """
        super().check_request(request, route)
        query = parse_qs(request.target.partition("?")[2])
        action = query.get("action", [""])[-1]
        if action not in _ACTIONS:
            raise RoundhouseError(
                "invalid_request", f"`?action=` must be one of {', '.join(_ACTIONS)}.", param="action"
            )
        name = request.fields.get("filename")
        if action != "erase" and not (isinstance(name, str) and _FILE_NAME.fullmatch(name)):
            raise RoundhouseError(
                "invalid_request",
                "`filename` must be a plain name of at most 200 letters, digits, `.`, `_` and `-`, which begins with a "
                "letter or a digit.",
                param="filename",
            )


SLOTS: Final = SlotsDialect()
