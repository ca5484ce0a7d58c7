"""How a worker that cannot start says so: an exit code, and one plain line last."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.support.worker_process import Worker
from worker.__main__ import dispatch

pytestmark = pytest.mark.engines

STUB = ("stub", "--host", "127.0.0.1", "--served-name", "demo", "--port")


def failed(tmp_path: Path, *args: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Exit code and last line of a worker that ends by itself."""
    with Worker(tmp_path / "log", 0, *args, env=env) as worker:
        return worker.ended(), worker.last_line


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        code, line = failed(tmp_path, *STUB, port)
    assert (code, line) == (3, f"port {port} on 127.0.0.1 is taken: stop what listens there, or choose another")


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (("vlm",), "python -m worker: error: argument engine: invalid choice: 'vlm'"),
        ((*STUB, "99999"), "python -m worker stub: error: argument --port: a port is a number from 1 to 65535"),
        ((*STUB, "8099", "--texts", "a"), "python -m worker stub: error: unrecognized arguments: --texts a"),
        (
            ("stub",),
            "python -m worker stub: error: the following arguments are required: --host, --port, --served-name",
        ),
    ],
)
def test_bad_arguments(capsys: pytest.CaptureFixture[str], args: tuple[str, ...], line: str) -> None:
    with pytest.raises(SystemExit) as raised:
        dispatch(args)
    assert raised.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(line)


def test_bad_arguments_end_the_process(tmp_path: Path) -> None:
    code, line = failed(tmp_path)
    assert (code, line) == (2, "python -m worker: error: the following arguments are required: engine")


def test_an_empty_token_is_not_taken_for_none(tmp_path: Path) -> None:
    code, line = failed(tmp_path, *STUB, "8099", env={"ROUNDHOUSE_ENGINE_TOKEN": ""})
    assert code == 1
    assert line.startswith("ROUNDHOUSE_ENGINE_TOKEN is set and empty")


def test_an_address_of_another_machine(tmp_path: Path) -> None:
    code, line = failed(tmp_path, "stub", "--host", "192.0.2.1", "--served-name", "demo", "--port", "8099")
    assert (code, line) == (1, "cannot listen on 192.0.2.1:8099: Cannot assign requested address")
