"""What programs log: the forms of lines, for people or journald, a bounded file, and outputs that are dead."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import TracebackType

import pytest

from common.line_writer import LineHandler, LineWriter
from common.log_formats import JournalFormatter, create_formatter, tag_request
from common.program_logs import BoundedLogFile, goes_to_journal, keep_log_file
from tests.support.cli import PROGRAM
from tests.support.small_disk import mount_small_disk

KIB = 1024


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """A logger whose lines reach only what the test adds."""
    made = logging.Logger("controller.test")
    yield made
    for handler in made.handlers:
        handler.close()


def add_file(logger: logging.Logger, path: Path, limit_bytes: int = 64 * KIB) -> BoundedLogFile:
    handler = BoundedLogFile(path, limit_bytes)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    return handler


def kept_lines(path: Path) -> list[str]:
    """The file before, if there is one, and then the file."""
    earlier = path.with_name(f"{path.name}.1")
    texts = [each.read_text() for each in (earlier, path) if each.exists()]
    return "".join(texts).splitlines()


# For journald.


def test_stderr_is_the_journal_when_the_variable_names_its_file(tmp_path: Path) -> None:
    with (tmp_path / "a").open("w") as file:
        stat = os.fstat(file.fileno())
        assert goes_to_journal({"JOURNAL_STREAM": f"{stat.st_dev}:{stat.st_ino}"}, file.fileno())
        # Redirected by who started it: the variable is inherited, and names another file.
        assert not goes_to_journal({"JOURNAL_STREAM": f"{stat.st_dev}:{stat.st_ino + 1}"}, file.fileno())
        assert not goes_to_journal({"JOURNAL_STREAM": "8"}, file.fileno())
        assert not goes_to_journal({}, file.fileno())
        closed = file.fileno()
    assert not goes_to_journal({"JOURNAL_STREAM": "1:2"}, closed)


@pytest.mark.parametrize(
    ("level", "prefix"),
    [("DEBUG", "<7>"), ("INFO", "<6>"), ("WARNING", "<4>"), ("ERROR", "<3>"), ("CRITICAL", "<2>")],
)
def test_every_line_for_the_journal_has_its_priority(level: str, prefix: str) -> None:
    record = logging.LogRecord("controller", getattr(logging, level), "", 0, "one\ntwo", None, None)
    assert JournalFormatter().format(record) == f"{prefix}controller: one\n{prefix}two"


def run_program(tmp_path: Path, script: str, **variables: str) -> str:
    """What a program writes to its stderr, which is a file; `{journal}` in a variable stands for it."""
    with (tmp_path / "stderr").open("w") as stderr:
        stat = os.fstat(stderr.fileno())
        env = {name: value.format(journal=f"{stat.st_dev}:{stat.st_ino}") for name, value in variables.items()}
        subprocess.run([sys.executable, "-c", script], env={**os.environ, **env}, stderr=stderr, check=False)
    return (tmp_path / "stderr").read_text()


LOGGING_PROGRAM = (
    "import logging; from common.program_logs import configure_logging; configure_logging('info'); "
    "logging.getLogger('gateway').warning('a line'); raise ValueError('unexpected')"
)


def test_in_the_journal_a_line_has_no_time_of_its_own_and_no_colour(tmp_path: Path) -> None:
    lines = run_program(tmp_path, LOGGING_PROGRAM, JOURNAL_STREAM="{journal}").splitlines()
    assert lines[0] == "<4>gateway: a line"
    assert lines[1] == "<2>root: ended by an unexpected error"
    assert lines[-1] == "<2>ValueError: unexpected"
    assert all(re.match(r"<[0-7]>", line) for line in lines)


def test_elsewhere_a_line_has_its_time(tmp_path: Path) -> None:
    lines = run_program(tmp_path, LOGGING_PROGRAM, JOURNAL_STREAM="1:1").splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} WARNING gateway: a line", lines[0])
    assert lines[-1] == "ValueError: unexpected"


# The file.


def test_a_file_is_bounded_and_keeps_the_latest(tmp_path: Path, logger: logging.Logger) -> None:
    path = tmp_path / "logs" / "gateway.log"
    add_file(logger, path, limit_bytes=4 * KIB)
    for number in range(1000):
        logger.warning("line %04d", number)
    lines = kept_lines(path)
    assert lines[-1] == "line 0999"
    assert len(lines) >= 200, "half of the limit is kept at least"
    assert lines == [f"line {number:04d}" for number in range(1000 - len(lines), 1000)], "none is torn or missing"
    files = list(path.parent.iterdir())
    assert sorted(each.name for each in files) == ["gateway.log", "gateway.log.1"]
    assert sum(each.stat().st_size for each in files) <= 4 * KIB
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_line_that_is_longer_than_the_file_may_be_is_cut(tmp_path: Path, logger: logging.Logger) -> None:
    path = tmp_path / "gateway.log"
    add_file(logger, path, limit_bytes=1 * KIB)
    logger.warning("x" * 5000)
    logger.warning("after it")
    assert kept_lines(path) == ["x" * 511, "after it"]


def test_a_file_that_somebody_moves_or_deletes_is_begun_anew(tmp_path: Path, logger: logging.Logger) -> None:
    path = tmp_path / "logs" / "gateway.log"
    add_file(logger, path)
    logger.warning("one")
    path.rename(tmp_path / "moved")
    logger.warning("two")
    assert kept_lines(path) == ["two"]
    path.unlink()
    path.parent.rmdir()
    logger.warning("three")
    assert kept_lines(path) == ["three"]


def test_a_file_goes_on_after_an_earlier_program_and_escapes_surrogates(tmp_path: Path, logger: logging.Logger) -> None:
    path = tmp_path / "gateway.log"
    path.write_text("before\n")
    add_file(logger, path)
    logger.warning("a \ud800 surrogate")
    assert kept_lines(path) == ["before", "a \\ud800 surrogate"]


def test_a_missing_folder_costs_lines(tmp_path: Path, logger: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "state" / "logs" / "gateway.log"
    add_file(logger, path)
    for _ in range(3):
        logger.warning("lost")
    assert [record.getMessage() for record in caplog.records] == [
        f"log lines are lost: {path}: No such file or directory"
    ]
    path.parent.parent.mkdir()
    logger.warning("kept")
    assert kept_lines(path) == ["kept"]


def test_a_full_disk_loses_whole_lines(
    tmp_path: Path, logger: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    with mount_small_disk(tmp_path / "state", kib=64) as disk:
        path = disk.folder / "logs" / "gateway.log"
        handler = add_file(logger, path, limit_bytes=32 * KIB)
        logger.warning("before")
        disk.fill()
        for number in range(600):
            logger.warning("line %04d", number)
        assert [record.getMessage() for record in caplog.records] == [
            f"log lines are lost: {path}: No space left on device"
        ]
        disk.free()
        logger.warning("after")
        lines = kept_lines(path)
        assert (lines[0], lines[-1]) == ("before", "after")
        assert all(re.fullmatch(r"before|line \d{4}|after", line) for line in lines)
        handler.close()


def test_no_file_is_kept_where_none_is_wanted(tmp_path: Path) -> None:
    handlers = list(logging.getLogger().handlers)
    keep_log_file(tmp_path, "gateway", limit_mib=0)
    assert logging.getLogger().handlers == handlers
    assert list(tmp_path.iterdir()) == []


ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]


def record_of(
    message: str, *args: object, exc_info: ExcInfo | None = None, extra: dict[str, str | None] | None = None
) -> logging.LogRecord:
    logger = logging.getLogger("gateway")
    return logger.makeRecord("gateway", logging.WARNING, "", 0, message, args, exc_info, extra=extra)


def exc_info() -> ExcInfo:
    error = ValueError("unexpected\nin two lines")
    return ValueError, error, error.__traceback__


def test_a_json_line_is_one_object() -> None:
    record = record_of('it says "%s"\n', "ü", extra=tag_request("req-1"))
    record.created = 1_700_000_000.25
    line = create_formatter("json").format(record)
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.250+00:00",
        "level": "warning",
        "logger": "gateway",
        "message": 'it says "ü"\n',
        "request_id": "req-1",
    }


def test_a_json_line_without_a_request_has_no_id() -> None:
    assert "request_id" not in json.loads(create_formatter("json").format(record_of("a line")))
    assert "request_id" not in json.loads(create_formatter("json").format(record_of("a line", extra=tag_request(None))))


def test_a_traceback_stays_in_its_line() -> None:
    line = create_formatter("json").format(record_of("it failed", exc_info=exc_info()))
    assert "\n" not in line
    assert json.loads(line)["exception"].endswith("ValueError: unexpected\nin two lines")


@pytest.mark.parametrize("log_format", ["human", "json"])
def test_for_journald_each_line_has_its_priority(log_format: str) -> None:
    formatter = create_formatter("json" if log_format == "json" else "human", is_journal=True)
    lines = formatter.format(record_of("it failed", exc_info=exc_info())).split("\n")
    assert all(line.startswith("<4>") for line in lines)
    if log_format == "json":
        [line] = lines
        assert json.loads(line.removeprefix("<4>"))["message"] == "it failed"


class Pipe:
    """A pipe whose reader is the test."""

    def __init__(self) -> None:
        self.reader, writer = os.pipe()
        self.stream = os.fdopen(writer, "w")

    def fill(self) -> None:
        poll = select.poll()
        poll.register(self.stream, select.POLLOUT)
        while poll.poll(0):
            os.write(self.stream.fileno(), b"x" * select.PIPE_BUF)

    def read(self) -> str:
        """What is in it now."""
        return os.read(self.reader, 1 << 20).decode()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    with closing(made.stream):
        yield made


def test_a_line_reaches_its_reader(pipe: Pipe) -> None:
    writer = LineWriter(pipe.stream)
    assert writer.write_line("one")
    assert writer.write_line("two " + "x" * 10_000)
    assert pipe.read() == "one\ntwo " + "x" * 10_000 + "\n"


def test_what_the_encoding_lacks_is_escaped(pipe: Pipe) -> None:
    pipe.stream.reconfigure(encoding="ascii")
    assert LineWriter(pipe.stream).write_line("caf\u00e9 \udcff")
    assert pipe.read() == "caf\\xe9 \\udcff\n"


def test_a_line_without_a_reader_is_lost(pipe: Pipe) -> None:
    os.close(pipe.reader)
    writer = LineWriter(pipe.stream)
    assert not writer.write_line("one")
    assert not writer.write_line("two")


def test_lines_that_a_stalled_reader_does_not_take_are_counted_for_it(pipe: Pipe) -> None:
    writer = LineWriter(pipe.stream, patience_s=0)
    pipe.fill()
    assert not writer.write_line("one")
    assert not writer.write_line("two")
    pipe.read()
    assert writer.write_line("three")
    assert writer.write_line("four")
    assert pipe.read() == "roundhouse: 2 lines were lost here: nobody took them\nthree\nfour\n"


def test_who_has_the_room_taken_from_it_does_not_block(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, look = LineWriter(pipe.stream, patience_s=0), LineWriter._has_room

    def lose_race(self: LineWriter, descriptor: int) -> bool:
        monkeypatch.setattr(LineWriter, "_has_room", look)
        pipe.fill()  # another program, between the look and the write
        return True

    monkeypatch.setattr(LineWriter, "_has_room", lose_race)
    writing = threading.Thread(target=writer.write_line, args=("one",))
    writing.start()
    writing.join(5)
    is_blocked = writing.is_alive()
    pipe.read()
    writing.join()
    assert not is_blocked
    assert os.get_blocking(pipe.stream.fileno()), "others write to it, too"
    assert writer.write_line("two")
    assert pipe.read().endswith("two\n")


@pytest.mark.parametrize("stream", [None, io.StringIO()])
def test_without_an_output_every_line_is_lost(stream: io.StringIO | None) -> None:
    assert not LineWriter(stream).write_line("one")


def test_a_record_without_a_text_is_told_in_its_place(pipe: Pipe) -> None:
    record = logging.LogRecord("controller.x", logging.INFO, __file__, 1, "%d models", ("two",), None)
    LineHandler(LineWriter(pipe.stream)).handle(record)
    said = pipe.read()
    assert said.startswith("controller.x: this record has no text: Traceback")
    assert "TypeError: %d format" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "code"),
    [
        ([sys.executable, "-m", "controller"], 2),
        ([sys.executable, "-m", "gateway"], 2),
        ([str(PROGRAM), "up", "--desired", "none"], 64),
        ([str(PROGRAM), "status", "--controller", "unix:none"], 3),
    ],
)
@pytest.mark.parametrize("is_open", [True, False])
def test_exit_codes_need_no_reader(tmp_path: Path, pipe: Pipe, command: list[str], code: int, is_open: bool) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    if "-m" in command:
        environment["ROUNDHOUSE_PORT"] = "no-port"
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    os.close(pipe.reader)
    by = [] if is_open else ["bash", "-c", 'exec "$@" >&- 2>&-', "bash"]
    done = subprocess.run(
        [*by, *command], cwd=tmp_path, env=environment, stdout=pipe.stream, stderr=pipe.stream, check=False
    )
    assert done.returncode == code
