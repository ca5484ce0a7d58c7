"""uvicorn's HTTP/1.1 protocol, answering what is no HTTP with the envelope too."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from controller.schema.errors import RoundhouseError


class EnvelopeProtocol(HttpToolsProtocol):
    """One connection."""

    def send_400_response(self, msg: str) -> None:
        """Answer `msg` and close. There is no request yet, hence no request id."""
        error = RoundhouseError("invalid_request", msg)
        body = error.json_bytes()
        head = (
            f"HTTP/1.1 {error.entry.status} Bad Request\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
