"""Logging of the controller, the gateway and retrieval: lines on stderr, and the same lines in a bounded file."""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final

from common.line_writer import LineHandler, LineWriter
from common.log_formats import LogFormat, create_formatter

log = logging.getLogger(__name__)

FOLDER_NAME: Final = "logs"
"""Folder below the state folder. The process runtime keeps engines' logs there too; their names begin with `rh-`."""
_MIB: Final = 1024 * 1024
_STDERR: Final = 2


def configure_logging(level: str, log_format: LogFormat = "human") -> None:
    """Log to stderr from `level` (a name such as `info`) on, in lines of this form. Lines begin with their syslog
    priority where journald reads stderr. A root logger that has handlers already keeps them and its level. Raises
    ValueError for an unknown level.

    From now on, in any case, an uncaught exception is logged instead of printed; KeyboardInterrupt is shown as usual.
    """
    handler = LineHandler(LineWriter(sys.stderr))
    handler.setFormatter(create_formatter(log_format, is_journal=goes_to_journal(os.environ, _STDERR)))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    sys.excepthook = _log_uncaught


def keep_log_file(state: Path, program: str, limit_mib: int, log_format: LogFormat = "human") -> None:
    """Also log to `logs/<program>.log` in the state folder, in lines of this form. Call after `configure_logging`.

    The file has `limit_mib` MiB at most, together with the older `logs/<program>.log.1`; 0: there is no log file.

    A missing state folder is not made, and then there is no file and no error: a gateway that stores nothing has none.
    """
    if limit_mib and state.is_dir():
        handler = BoundedLogFile(state / FOLDER_NAME / f"{program}.log", limit_mib * _MIB)
        handler.setFormatter(create_formatter(log_format))
        logging.getLogger().addHandler(handler)


def open_access_log(state: Path, limit_mib: int) -> Callable[[str], None]:
    """Return a function that appends a line to `logs/access.log` in the state folder, which blocks on the disk and
    never raises. The file has `limit_mib` MiB at most, together with the older `logs/access.log.1`."""
    handler = BoundedLogFile(state / FOLDER_NAME / "access.log", limit_mib * _MIB)

    def write_line(line: str) -> None:
        handler.handle(logging.LogRecord("access", logging.INFO, "", 0, line, None, None))

    return write_line


def goes_to_journal(environ: Mapping[str, str], descriptor: int) -> bool:
    """Whether the descriptor is the one that systemd connected to journald (systemd.exec(5), `JOURNAL_STREAM`). False
    where the variable is missing or the descriptor is closed; nothing is raised.

    The variable is inherited even by programs whose output was redirected. So its content, device and inode of the
    stream, is compared with the descriptor's.
    """
    device, _, inode = environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        stat = os.fstat(descriptor)
    except OSError:
        return False
    return (device, inode) == (str(stat.st_dev), str(stat.st_ino))


class BoundedLogFile(logging.Handler):
    """A `logging` handler that appends lines to a file. A line that would take the file above half of the limit begins
    a new file; the old one replaces `<file>.1`.

    A line that cannot be written, such as on a full disk or without the folder, is lost as a whole. The first of
    several lost in a row is logged as a warning; each later line is tried again. A line longer than half of the limit
    is cut.
    """

    def __init__(self, path: Path, limit_bytes: int) -> None:
        """`limit_bytes` bounds both files together. Nothing is opened yet: a record opens the file, and makes a missing
        folder of `path`, but not its parents."""
        super().__init__()
        self._path = path
        self._part_bytes = limit_bytes // 2
        self._descriptor: int | None = None
        self._is_losing = False

    def emit(self, record: logging.LogRecord) -> None:
        """Append the record, which blocks on the disk.

        Never raises: a record that cannot be written is lost, and one that cannot be formatted is reported by logging's
        own `handleError`.
        """
        try:
            line = self.format(record).encode("utf-8", "backslashreplace")
        except Exception:  # noqa: BLE001 - as every handler of `logging`: a wrong call that logs ends nothing
            self.handleError(record)
            return
        try:
            self._write_line(line[: self._part_bytes - 1] + b"\n")
        except OSError as error:
            self._close_file()
            if not self._is_losing:
                self._is_losing = True
                log.warning("log lines are lost: %s: %s", self._path, error.strerror or error)
        else:
            self._is_losing = False

    def close(self) -> None:
        """Close the log file. A later record opens it again."""
        self.acquire()
        try:
            self._close_file()
        finally:
            self.release()
        super().close()

    def _write_line(self, line: bytes) -> None:
        """Append a line. Raises OSError; the file then holds nothing of the line."""
        descriptor = self._open_file()
        size = os.fstat(descriptor).st_size
        if size and size + len(line) > self._part_bytes:
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))
            descriptor = self._open_file()
            size = 0
        if os.write(descriptor, line) < len(line):
            os.ftruncate(descriptor, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _open_file(self) -> int:
        """Return a descriptor of the file that has the path now, which may have been rotated or deleted by others."""
        if self._descriptor is not None:
            try:
                if os.path.samestat(self._path.stat(), os.fstat(self._descriptor)):
                    return self._descriptor
            except FileNotFoundError:
                pass
            self._close_file()
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(self._path, flags, 0o600)
        return self._descriptor

    def _close_file(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _log_uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)
    else:
        logging.critical("ended by an unexpected error", exc_info=(kind, error, traceback))
