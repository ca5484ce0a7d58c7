"""The table of every error code of Roundhouse.

The table is the contract: `docs/errors.md` is tested against it, and the gateway and the controller answer with
nothing that is not in it.
"""

from __future__ import annotations

from typing import Final

from controller.schema.error_code import ErrorCode
from controller.schema.request_errors import REQUEST_ERRORS
from controller.schema.service_errors import SERVICE_ERRORS

ERROR_CODES: Final[dict[str, ErrorCode]] = {entry.code: entry for entry in (*REQUEST_ERRORS, *SERVICE_ERRORS)}
