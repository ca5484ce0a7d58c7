"""The certificate that HTTPS is served with. Its files are read again when they change, without a restart.

Connections that are open keep what they were begun with. Files that cannot be used change nothing: the certificate that
was read before is served on, a log line says why, and a metric shows it until they can be used.
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
"""How often the files are looked at: whoever renews a certificate does so days before it expires."""

_FileStamp = tuple[int, ...] | None
"""What changes with a file, whatever links lead to it; None: it cannot be looked at."""


class CertificateError(Exception):
    """The files hold no certificate that can be served. The text names them and says why."""


class TlsCertificate:
    """The certificate that new TLS connections get. It is read again when its files change."""

    def __init__(self, cert: Path, key: Path | None) -> None:
        """`key` None: `cert` holds the key as well.

        Raises:
            CertificateError: the files cannot be used.
        """
        self._cert = cert
        self._key = key
        self._stamps = self._read_stamps()  # before the files: what is written meanwhile is noticed later
        self._current_context = load_context(cert, key)
        self.problem: str | None = None
        """Why the files as they are now cannot be used; None: they are in use."""
        self.listening_context = self._current_context
        """What a server listens with, as long as it lives: each connection takes the newest certificate by it."""
        self.listening_context.sni_callback = self._use_newest

    def _use_newest(self, connection: ssl.SSLObject, server_name: str | None, context: ssl.SSLContext) -> None:
        """OpenSSL asks at the beginning of each handshake, also where the client names no server."""
        connection.context = self._current_context

    async def follow_files(self) -> None:
        """Look at the files again and again, in a thread, since they may lie on a slow disk; until cancelled."""
        while True:
            await asyncio.sleep(CHECK_S)
            try:
                await asyncio.to_thread(self.check_files)
            except Exception:
                logger.exception("the certificate's files could not be looked at")

    def check_files(self) -> None:
        """Take what the files hold now, if they have changed since they were last looked at, or could not be used."""
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
    """What these files let a server show.

    Raises:
        CertificateError: they cannot be read, hold something else, or do not belong together.
    """
    context = HttpsContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key, password=bytes)  # else OpenSSL asks the terminal for a password
    except OSError as error:  # ssl's own errors are some of them
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
