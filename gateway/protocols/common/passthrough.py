"""What an engine speaks itself: the request goes as it is, and so does the answer. Pure."""

from __future__ import annotations

from collections.abc import Callable

from controller.schema.routing import ModelRoute
from gateway.protocols.common.capabilities import check_capabilities
from gateway.protocols.common.request import InferenceRequest


class SpokenDialect:
    """Their part of a `Dialect`."""

    id_header: bytes | None = None

    may_flow: bool = False

    def takes(self, request: InferenceRequest) -> bool:
        """See Dialect."""
        return True

    def check(self, request: InferenceRequest, route: ModelRoute) -> None:
        """See Dialect."""
        check_capabilities(request.fields, route.capabilities, route.name)

    def whole(self, request: InferenceRequest) -> Callable[[bytes], bytes] | None:
        """See Dialect."""
        return None
