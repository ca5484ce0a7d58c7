"""Authentication of clients where the controller listens on a TCP port: each must send the gateway token."""

from __future__ import annotations

from uvicorn.protocols.utils import ClientDisconnected

from common.internal_tokens import LINK_TOKEN, OPEN_PATHS
from common.shared_token import SharedToken
from controller.api.requests import REQUEST_ID_HEADER
from controller.api.stopping import AsgiApp, Message, Receive, Send
from controller.schema.errors import RoundhouseError


class TokenCheck:
    """ASGI middleware that answers every request and every WebSocket without the gateway token in its header
    `x-roundhouse-gateway-token` with the error `invalid_gateway_token` (401), and for a WebSocket then raises
    ClientDisconnected, which uvicorn catches. HTTP requests of `/internal/health` and `/metrics` need no token."""

    def __init__(self, app: AsgiApp, token: SharedToken) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request or a WebSocket on to the app if it shows the gateway token, or is an HTTP request of
        `/internal/health` or `/metrics`; otherwise answer with error `invalid_gateway_token`.

        Raises ClientDisconnected for a refused WebSocket; uvicorn catches it.
        """
        headers = dict(scope["headers"])
        is_open = scope["type"] == "http" and scope["path"] in OPEN_PATHS["controller"]
        if is_open or self._token.matches(headers.get(LINK_TOKEN.header.encode(), b"")):
            await self._app(scope, receive, send)
            return
        error = RoundhouseError("invalid_gateway_token", "The request does not show the token of this controller.")
        request_id = headers.get(REQUEST_ID_HEADER.encode())
        body = error.json_bytes(request_id.decode("latin-1") if request_id else None)
        # A WebSocket is refused by an HTTP answer, before it is one.
        kind = "http" if scope["type"] == "http" else "websocket.http"
        error_headers = [(name.encode(), value.encode()) for name, value in error.build_headers().items()]
        error_headers += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": f"{kind}.response.start", "status": error.entry.status, "headers": error_headers})
        await send({"type": f"{kind}.response.body", "body": body, "more_body": False})
        if kind != "http":
            # For uvicorn a handshake that was answered thus is incomplete, and an error in the log; this ends it.
            raise ClientDisconnected
