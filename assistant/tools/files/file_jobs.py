"""Reading, listing, searching and writing files of one folder, and nothing outside of it, each within bounds. Only the
standard library: it runs in a process of its own.

Each part of a path is opened relative to the one before (`openat` with `O_NOFOLLOW`), so a link or a folder that is put
in the way meanwhile leads nowhere else.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

DEEPEST: Final = 32
"""Folders within each other."""
LONGEST_PATH: Final = 1024
"""Characters."""
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class FileProblem(Exception):  # noqa: N818 - it is a problem of the path, which is told to the model
    """What was asked for cannot be done. The text says why, in words for the model that asked."""


def split_path(path: str) -> list[str]:
    """Return the parts of a path within the folder, without empty ones and `.`; none: the folder itself. Nothing is
    looked at.

    Raises:
        FileProblem: it begins with `/`, has a part `..`, a NUL, more than `LONGEST_PATH` characters or `DEEPEST` parts.
    """
    if len(path) > LONGEST_PATH or "\0" in path:
        raise FileProblem("This is no path.")
    if path.startswith("/"):
        raise FileProblem("The path begins with `/`. Paths are relative to the folder of this tool.")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise FileProblem("The path has `..`, which leads out of a folder.")
    if len(parts) > DEEPEST:
        raise FileProblem(f"The path has more than {DEEPEST} parts.")
    return parts


class ConfinedFolder:
    """Opens files and folders within one folder, by paths that `split_path` made."""

    def __init__(self, root: str) -> None:
        """`root`: the declared folder, which is opened anew for each call; it may itself be named by a link, for the
        operator declared it."""
        self._root = root

    @contextlib.contextmanager
    def open_folder(self, parts: list[str], *, creates: bool = False) -> Iterator[int]:
        """Open a folder, and give its descriptor, which is closed with the context. `parts`: of `split_path`, which
        alone keeps `..` out; none: the folder itself. `creates`: parts that are missing are made, and stay.

        Raises:
            FileProblem: it is not there, is no folder, or a part of its path is a link; or the system refuses.
        """
        descriptor = self._open_root()
        try:
            for number, part in enumerate(parts, start=1):
                following = _open_part(descriptor, part, "/".join(parts[:number]), creates=creates)
                os.close(descriptor)
                descriptor = following
            yield descriptor
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def open_file(self, parts: list[str]) -> Iterator[int]:
        """Open a regular file for reading, and give its descriptor, which is closed with the context.

        Raises:
            FileProblem: it is not there, or is a folder, a link, a file with several hard links, a device, a pipe or a
            socket; or the system refuses.
        """
        if not parts:
            raise FileProblem("The path names the folder itself, and no file.")
        with self.open_folder(parts[:-1]) as folder:
            descriptor = open_regular_file(folder, parts[-1], "/".join(parts))
            try:
                yield descriptor
            finally:
                os.close(descriptor)

    def write_file(self, parts: list[str], data: bytes, *, may_replace: bool) -> bool:
        """Write a whole file, and wait until it is on the disk: whoever reads it sees the old content or the new one.
        Missing folders are made. A file that is replaced keeps its permissions; a new one may be read by everybody.

        Returns whether a file was replaced. If the process is killed meanwhile, a file `.<hex digits>.tmp` may stay.

        Raises:
            FileProblem: there is something at the path which is no regular file or has several hard links, or a file
                although `may_replace` is False; or the system refuses.
        """
        if not parts:
            raise FileProblem("The path names the folder itself, and no file.")
        name, shown = parts[-1], "/".join(parts)
        with self.open_folder(parts[:-1], creates=True) as folder:
            mode = _find_mode(folder, name, shown)
            if mode is not None and not may_replace:
                raise FileProblem(f"{shown} exists. Set `replace` to write it anew.")
            temporary = f".{secrets.token_hex(8)}.tmp"
            try:
                _write_new_file(folder, temporary, data, 0o644 if mode is None else mode)
                # The name itself is replaced: a link that was put there meanwhile is not followed.
                os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
                os.fsync(folder)
            except OSError as error:
                raise FileProblem(f"{shown} cannot be written: {error.strerror}.") from None
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
        return mode is not None

    def _open_root(self) -> int:
        try:
            return os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise FileProblem(f"The folder of this tool cannot be opened: {error.strerror}.") from None


def open_regular_file(folder: int, name: str, shown: str) -> int:
    """Open a regular file in the folder of this descriptor for reading, and return its descriptor, which the caller
    closes. `name`: one part of a path. `shown`: its path in errors.

    Raises FileProblem: it is not there, is no regular file (also a link), has several hard links, or must not be read.
    """
    try:
        # Opening a device or a pipe may already do something, so it is looked at before, and again after.
        _check_regular(os.stat(name, dir_fd=folder, follow_symlinks=False), shown)
        descriptor = os.open(name, _FILE, dir_fd=folder)
    except OSError as error:
        raise _path_problem(error, shown) from None
    try:
        _check_regular(os.fstat(descriptor), shown)
    except FileProblem:
        os.close(descriptor)
        raise
    return descriptor


def _check_regular(status: os.stat_result, shown: str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise FileProblem(f"{shown} is a folder.")
    if stat.S_ISLNK(status.st_mode):
        raise FileProblem(f"{shown} is a link, and links are not followed.")
    if not stat.S_ISREG(status.st_mode):
        raise FileProblem(f"{shown} is no regular file.")
    if status.st_nlink > 1:
        # The other name may be anywhere on this disk: a hard link into the folder would lead out of it.
        raise FileProblem(f"{shown} has a second name (a hard link), maybe outside this folder, and is not opened.")


def _open_part(folder: int, part: str, shown: str, *, creates: bool) -> int:
    try:
        if creates:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=folder)
        return os.open(part, _FOLDER, dir_fd=folder)
    except OSError as error:
        raise _path_problem(error, shown) from None


def _path_problem(error: OSError, shown: str) -> FileProblem:
    if error.errno == errno.ENOENT:
        return FileProblem(f"{shown} does not exist.")
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return FileProblem(f"{shown} is no folder, or a link, and links are not followed.")
    return FileProblem(f"{shown} cannot be opened: {error.strerror}.")


def _find_mode(folder: int, name: str, shown: str) -> int | None:
    """Return the permissions of the file that is there; None: there is none."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _path_problem(error, shown) from None
    _check_regular(status, shown)
    return stat.S_IMODE(status.st_mode) & 0o777


def _write_new_file(folder: int, name: str, data: bytes, mode: int) -> None:
    descriptor = os.open(name, _NEW_FILE, 0o600, dir_fd=folder)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


LARGEST_READ: Final = 16 * 1024 * 1024
"""Bytes of a file that are looked at; what follows is not reached."""
MOST_LISTED: Final = 2000
MOST_SCANNED: Final = 50_000
"""Entries of one folder that are looked at."""
MOST_SEARCHED_FILES: Final = 20_000
MOST_SEARCHED_BYTES: Final = 512 * 1024 * 1024
MOST_MATCHES: Final = 500
LONGEST_LINE: Final = 2000
"""Characters of a line that a search looks at."""
SHOWN_LINE: Final = 300
"""Characters of a line that a search shows."""
_BINARY_BYTES: Final = 8192
"""Bytes at the beginning of a file among which a NUL means that it is binary."""


def read_file(root: str, path: str, *, first_line: int, last_line: int | None, most_bytes: int) -> str:
    """Return the text of a file: its lines from `first_line` (from 1) to `last_line`, included; None: to the end. Empty
    if `last_line` is before `first_line`. At most `most_bytes` + 1 bytes: the last one shows that there is more.

    Lines end at `\\n`, `\\r\\n` and `\\r`. `path`: within the folder `root`. Of a longer file, lines of the first
    `LARGEST_READ` bytes are found. What is no UTF-8 becomes replacement characters.

    Raises:
        FileProblem: it is no regular file that may be read, is binary, or ends before `first_line`.
    """
    with ConfinedFolder(root).open_file(split_path(path)) as descriptor:
        size = os.fstat(descriptor).st_size
        if first_line == 1 and last_line is None:
            data = _read_bytes(descriptor, min(most_bytes + 1, LARGEST_READ))
            _check_text(data, path)
            return data.decode("utf-8", errors="replace")
        data = _read_bytes(descriptor, LARGEST_READ)
    _check_text(data, path)
    lines = data.splitlines(keepends=True)
    if first_line > len(lines):
        end = f"{len(lines)} lines" if size <= LARGEST_READ else f"{len(lines)} lines in its first {LARGEST_READ} bytes"
        raise FileProblem(f"{path} has {end}.")
    return b"".join(lines[first_line - 1 : last_line])[: most_bytes + 1].decode("utf-8", errors="replace")


def list_files(root: str, path: str) -> str:
    """Return the entries of the folder `path` within `root`, one a line, sorted: folders end with `/`, files have their
    size in bytes, and links, devices and the like say what they are. After `MOST_LISTED` entries, a last line says how
    many there are; an empty folder has one that says so.

    Raises FileProblem: it is no folder, or one that must not be read.
    """
    lines, scanned = [], 0
    with ConfinedFolder(root).open_folder(split_path(path)) as folder, os.scandir(folder) as entries:
        for entry in entries:
            scanned += 1
            if scanned > MOST_SCANNED:
                break
            lines.append(_describe_entry(entry))
    lines.sort()
    if not lines:
        return "The folder is empty."
    if len(lines) > MOST_LISTED or scanned > MOST_SCANNED:
        count = f"more than {MOST_SCANNED}" if scanned > MOST_SCANNED else f"{len(lines)}"
        lines = [*lines[:MOST_LISTED], f"[These are {MOST_LISTED} of {count} entries.]"]
    return "\n".join(lines)


def _describe_entry(entry: os.DirEntry[str]) -> str:
    name = _show_name(entry.name)
    if entry.is_symlink():
        return f"{name} (a link, which is not followed)"
    if entry.is_dir(follow_symlinks=False):
        return f"{name}/"
    if not entry.is_file(follow_symlinks=False):
        return f"{name} (no regular file)"
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return f"{name} (gone meanwhile)"
    return f"{name} (a hard link, which is not opened)" if status.st_nlink > 1 else f"{name} ({status.st_size} bytes)"


def write_file(root: str, path: str, content: str, *, replace: bool, most_bytes: int) -> str:
    """Write a whole file in UTF-8, and return a sentence that says what was done. Missing folders are made. `path`:
    within the folder `root`. `most_bytes`: size of the largest file.

    Raises FileProblem: it is too large, exists although `replace` is False, is no regular file, or the system refuses.
    """
    data = content.encode("utf-8", errors="replace")
    if len(data) > most_bytes:
        raise FileProblem(f"The content has {len(data)} bytes; {most_bytes} are the most.")
    was_there = ConfinedFolder(root).write_file(split_path(path), data, may_replace=replace)
    return f"{path} was {'replaced' if was_there else 'written'}: {len(data)} bytes."


@dataclass
class _Search:
    """The bounds of one search, and how far it is."""

    find_matches: Callable[[str], bool]
    name_pattern: str
    ends_at: float
    """Monotonic seconds."""
    matches: list[str]
    files: int = 0
    bytes: int = 0

    def why_over(self) -> str | None:
        """Return why the search goes no further; None: it does."""
        if len(self.matches) >= MOST_MATCHES:
            return f"there are {MOST_MATCHES} matches"
        if self.files >= MOST_SEARCHED_FILES:
            return f"{MOST_SEARCHED_FILES} files were searched"
        if self.bytes >= MOST_SEARCHED_BYTES:
            return f"{MOST_SEARCHED_BYTES} bytes were searched"
        return "the time is up" if time.monotonic() >= self.ends_at else None


def search_files(
    root: str, path: str, text: str, *, is_regex: bool, ignores_case: bool, files: str, within_s: float
) -> str:
    """Return the lines that hold `text`, as `path:line: text` with lines counted as `read_file` does, in the order
    of the paths; a sentence where there is none. A last line says why a search ended early: after `MOST_MATCHES` lines,
    or too many files or bytes.

    `path`: a folder or a file within `root`. `is_regex`: `text` is a regular expression of Python's; nothing but the
    end of the process bounds its time. `files`: pattern (`*.md`) of the names of files that are searched; a `path` that
    is a file is searched in any case. `within_s`: seconds after which the search ends with what it has. Left out are
    links, binary files, what cannot be read, and what follows the first `LARGEST_READ` bytes of a file or
    `LONGEST_LINE` characters of a line.

    Raises:
        FileProblem: `path` is neither a folder nor a file, or the expression is none.
    """
    parts = split_path(path)
    search = _Search(_make_matcher(text, is_regex=is_regex, ignores_case=ignores_case), files, 0.0, [])
    search.ends_at = time.monotonic() + within_s
    folder = ConfinedFolder(root)
    if parts and _is_file(folder, parts):
        with folder.open_file(parts) as descriptor:
            _search_file(descriptor, path, search)
    else:
        with folder.open_folder(parts) as descriptor:
            _search_folder(descriptor, "/".join(parts), len(parts), search)
    found = "\n".join(search.matches[:MOST_MATCHES]) or f"No match in {search.files} files."
    reason = search.why_over()
    return found if reason is None else f"{found}\n[The search ended early: {reason}.]"


def _is_file(folder: ConfinedFolder, parts: list[str]) -> bool:
    try:
        with folder.open_file(parts):
            return True
    except FileProblem:
        return False


def _make_matcher(text: str, *, is_regex: bool, ignores_case: bool) -> Callable[[str], bool]:
    if is_regex:
        try:
            expression = re.compile(text, re.IGNORECASE if ignores_case else 0)
        except (re.error, RecursionError, OverflowError) as error:
            raise FileProblem(f"This is no regular expression: {error}.") from None
        return lambda line: expression.search(line) is not None
    if ignores_case:
        lower = text.casefold()
        return lambda line: lower in line.casefold()
    return lambda line: text in line


def _search_folder(folder: int, shown: str, depth: int, search: _Search) -> None:
    for name, is_folder in _sorted_entries(folder):
        if search.why_over() is not None:
            return
        path = f"{shown}/{name}" if shown else name
        try:
            if is_folder:
                _search_inner_folder(folder, name, path, depth, search)
            elif fnmatch.fnmatchcase(name, search.name_pattern):
                _search_inner_file(folder, name, path, search)
        except (FileProblem, OSError):
            continue  # gone, changed or closed to this user meanwhile: the others are searched


def _search_inner_folder(folder: int, name: str, path: str, depth: int, search: _Search) -> None:
    if depth >= DEEPEST:
        return
    descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        _search_folder(descriptor, path, depth + 1, search)
    finally:
        os.close(descriptor)


def _search_inner_file(folder: int, name: str, path: str, search: _Search) -> None:
    descriptor = open_regular_file(folder, name, path)
    try:
        _search_file(descriptor, path, search)
    finally:
        os.close(descriptor)


def _sorted_entries(folder: int) -> Iterator[tuple[str, bool]]:
    """Yield the name of each file and folder, and whether it is a folder; no links, devices and pipes."""
    found = []
    with os.scandir(folder) as entries:
        for number, entry in enumerate(entries):
            if number >= MOST_SCANNED:
                break
            if entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False):
                found.append((entry.name, entry.is_dir(follow_symlinks=False)))
    yield from sorted(found)


def _search_file(descriptor: int, path: str, search: _Search) -> None:
    data = _read_bytes(descriptor, LARGEST_READ)
    search.files += 1
    search.bytes += len(data)
    if b"\0" in data[:_BINARY_BYTES]:
        return
    # Lines are those of `read_file`: of bytes, which end at \n, \r\n and \r alone.
    for number, part in enumerate(data.splitlines(), start=1):
        line = part.decode("utf-8", errors="replace")
        if search.find_matches(line[:LONGEST_LINE]):
            search.matches.append(f"{_show_name(path)}:{number}: {line.strip()[:SHOWN_LINE]}")
            if len(search.matches) >= MOST_MATCHES:
                return


def _read_bytes(descriptor: int, most: int) -> bytes:
    parts, size = [], 0
    while size < most and (part := os.read(descriptor, min(most - size, 1024 * 1024))):
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def _check_text(data: bytes, path: str) -> None:
    if b"\0" in data[:_BINARY_BYTES]:
        raise FileProblem(f"{path} is a binary file, and no text.")


def _show_name(name: str) -> str:
    """Return a name for a line of output: one that is no UTF-8, or has line breaks, is changed."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in name)
