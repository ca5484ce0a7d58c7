"""The certificate for HTTPS. Its files are loaded again when they change, without a restart.

Open connections keep their certificate. If new files cannot be used, the certificate loaded before stays in use; the
log says why, and a metric shows it until the files can be used.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import ssl
from pathlib import Path
from typing import Final

from gateway.server.plain_http import HttpsContext

logger = logging.getLogger(__name__)

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
        cancelled. Never returns.

        Errors are logged and end nothing.
        """
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
