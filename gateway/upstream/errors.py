"""How the engine's side of a request can fail. The texts are plain words that follow "it" or "the engine failed:"."""

from __future__ import annotations


class EngineFailureError(Exception):
    """The engine's side failed. The text is plain; the library's own error is the cause."""


class EngineRefusedError(EngineFailureError):
    """No connection came about: the request never reached the replica."""

    def __init__(self, text: str = "it accepts no connection") -> None:
        super().__init__(text)


class EngineBrokenError(EngineFailureError):
    """The connection was closed before the answer's first byte. A kept one may merely have been stale."""

    def __init__(self) -> None:
        super().__init__("it closed the connection before it answered")


class EngineGarbledError(EngineFailureError):
    """Something came, but not the whole head of an HTTP answer."""

    def __init__(self, text: str = "what it sent is not an HTTP answer") -> None:
        super().__init__(text)


class EngineDiedError(EngineFailureError):
    """The answer ended before it was complete, or went on with what is not HTTP."""

    def __init__(self, text: str = "the connection ended before its answer was complete") -> None:
        super().__init__(text)
