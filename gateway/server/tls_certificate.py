"""The HTTPS certificate, loaded again when its files change, without a restart, and the answer to plain HTTP.

Open connections keep their certificate. If new files cannot be used, the certificate loaded before stays in use; the
log says why, and a metric shows it until the files can be used.

A TLS connection begins with a record of type 22; HTTP begins with a method, in capital letters. The event loop offers
no hook between a connection and its TLS, so the handshake itself looks at the first bytes. For plain HTTP, it sends the
answer in place of its own bytes, and waits until the client leaves or the loop's time for handshakes is over.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)


DROPPED_BYTES: Final = 1024 * 1024
"""Bytes after a plain request that are read and dropped; closing earlier could lose the answer."""


def begins_plain_http(data: bytes) -> bool:
    """Return whether a connection that begins with these bytes is HTTP without TLS, by its first byte alone. False for
    empty `data`."""
    return b"A" <= data[:1] <= b"Z"


class HttpsContext(ssl.SSLContext):
    """TLS context of a server. If `answer_plain_http` is set, a client that speaks plain HTTP on the TLS port gets what
    that function returns, in plain HTTP; else the client's handshake fails.

    Use it as any `ssl.SSLContext` of a server, with an event loop's streams or protocols.
    """

    answer_plain_http: Callable[[], bytes] | None = None
    """Makes the whole answer, head and body, to a client that speaks plain HTTP. None: its handshake fails, as
    usual."""

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = True,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Make the TLS side of one connection, which answers plain HTTP as `answer_plain_http` says at this moment.
        Called by the event loop; see `ssl.SSLContext.wrap_bio`."""
        connection = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        assert isinstance(connection, _ServerHandshake)
        connection.watch_first_bytes(incoming, outgoing, self.answer_plain_http)
        return connection


class _ServerHandshake(ssl.SSLObject):
    """The server's TLS side of one connection."""

    def watch_first_bytes(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, answer: Callable[[], bytes] | None
    ) -> None:
        """Check the first bytes of `incoming` before TLS reads them. Call once, before the handshake.

        `answer`: makes the bytes that a client of plain HTTP is sent; None: such a client is not answered.
        """
        self._incoming = incoming
        self._outgoing = outgoing
        self._answer = answer
        self._is_first_look = True
        self._is_plain = False
        self._dropped_bytes = 0

    def do_handshake(self) -> None:
        """Continue the handshake; see `ssl.SSLObject.do_handshake`. Called for new bytes until it ends or fails.

        Raises:
            ssl.SSLWantReadError: more bytes are needed; always for a client of plain HTTP, which never gets further.
            ssl.SSLError: the handshake failed, or a client of plain HTTP sent more than `DROPPED_BYTES`.
        """
        if self._is_first_look and self._incoming.pending:
            self._is_first_look = False
            self._check_first_bytes()
        if self._is_plain:
            self._dropped_bytes += len(self._incoming.read())
            if self._dropped_bytes > DROPPED_BYTES:
                raise ssl.SSLError("plain HTTP on a TLS connection")
            raise ssl.SSLWantReadError
        super().do_handshake()

    def _check_first_bytes(self) -> None:
        data = self._incoming.read()
        self._incoming.write(data)
        if self._answer is not None and begins_plain_http(data):
            self._is_plain = True
            self._outgoing.write(self._answer())


HttpsContext.sslobject_class = _ServerHandshake


CHECK_S: Final = 5.0
"""Seconds between checks of the files. Certificates are renewed days before they expire."""

_FileStamp = tuple[int, ...] | None
"""Numbers that change when a file or a link to it changes; None: the file cannot be accessed."""


class CertificateError(Exception):
    """The files hold no usable certificate and key. The text names the files and says why."""


class TlsCertificate:
    """The certificate of new TLS connections, loaded again when its files change.

    Made once at start; blocks on the disk. Listen with `listening_context`, and run `follow_files` as a task for as
    long as the server runs.
    """

    def __init__(self, cert: Path, key: Path | None) -> None:
        """Load the files. `cert`, `key`: PEM files. `key` None: `cert` holds the key, too.

        Raises:
            CertificateError: the files cannot be used.
        """
        self._cert = cert
        self._key = key
        self._stamps = self._read_stamps()  # before the files, so that a change in between is noticed later
        self._current_context = load_context(cert, key)
        self.problem: str | None = None
        """Why the present files cannot be used; None: they are in use."""
        self.listening_context = self._current_context
        """The context to listen with. It stays the same, and gives each new connection the newest certificate."""
        self.listening_context.sni_callback = self._use_newest

    def _use_newest(self, connection: ssl.SSLObject, server_name: str | None, context: ssl.SSLContext) -> None:
        """Set the certificate of a new connection. OpenSSL calls this in each handshake, even without a server name."""
        connection.context = self._current_context

    async def follow_files(self) -> None:
        """Run `check_files` every `CHECK_S` (5) seconds, in a thread, because the files' disk may be slow, until
        cancelled. Never returns. Errors are logged and end nothing."""
        while True:
            await asyncio.sleep(CHECK_S)
            try:
                await asyncio.to_thread(self.check_files)
            except Exception:
                logger.exception("the certificate's files could not be looked at")

    def check_files(self) -> None:
        """Load the files if they have changed since the last check, or could not be used then. Blocks on the disk.

        Files that cannot be used raise nothing: they set `problem`, and the certificate before stays in use.
        """
        stamps = self._read_stamps()
        if stamps == self._stamps and self.problem is None:
            return
        try:
            new_context = load_context(self._cert, self._key)
        except CertificateError as error:
            if str(error) != self.problem:
                logger.warning("the certificate read before is still served: %s", error)
            self.problem = str(error)
        else:
            self._current_context = new_context
            self.problem = None
            logger.info("the certificate in %s was read again, and is served from now on", self._cert)
        self._stamps = stamps

    def _read_stamps(self) -> tuple[_FileStamp, ...]:
        return tuple(_read_stamp(path) for path in (self._cert, self._key) if path is not None)


def load_context(cert: Path, key: Path | None) -> HttpsContext:
    """Make a TLS server context with this certificate. `key` None: `cert` holds the key, too. Blocks on the disk.

    Raises:
        CertificateError: the files cannot be read, hold no certificate and unencrypted key, or do not belong together.
    """
    context = HttpsContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key, password=bytes)  # otherwise OpenSSL asks for a password on the terminal
    except OSError as error:  # ssl.SSLError is one
        is_mismatch = isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH"
        flaw = "the key is another certificate's" if is_mismatch else _pem_problem(error)
        raise CertificateError(
            f"ROUNDHOUSE_TLS_CERT {cert} and ROUNDHOUSE_TLS_KEY {key or '(unset)'}: {flaw}"
        ) from error
    return context


def _pem_problem(error: OSError) -> str:
    if isinstance(error, ssl.SSLError) or error.errno == errno.EINVAL:
        return "no certificate and its unencrypted private key, as PEM"
    return error.strerror or str(error)


def _read_stamp(path: Path) -> _FileStamp:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
