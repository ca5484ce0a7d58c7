"""Lines on outputs that are dead: the pipes and the programs are real."""

from __future__ import annotations

import io
import logging
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from common.line_writer import LineHandler, LineWriter
from tests.support.cli import PROGRAM


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
def test_the_exit_code_needs_no_reader(
    tmp_path: Path, pipe: Pipe, command: list[str], code: int, is_open: bool
) -> None:
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
