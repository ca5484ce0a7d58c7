"""The launcher of vLLM: what it checks first, and how it explains an end."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from worker.launchers import vllm
from worker.launchers.child_process import Ending
from worker.launchers.vllm import explain_ending


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("vllm: error: unrecognized arguments: --nope", "vllm: error: unrecognized arguments: --nope"),
        (
            "(Worker pid=1) ERROR 11-21 20:26:48 [core.py:953] torch.OutOfMemoryError: CUDA out of memory",
            "torch.OutOfMemoryError: CUDA out of memory",
        ),
        ("  Value error, max_model_len (9) is too much", "Value error, max_model_len (9) is too much"),
        ("  Input should be 'a' or 'b'", "Input should be 'a' or 'b'"),
        ("OSError: [Errno 98] Address already in use", "OSError: [Errno 98] Address already in use"),
        ("pydantic_core.ValidationError: 1 validation error for ModelConfig", None),
        # vllm-project/vllm#22376: who looks at a model's class in another process names neither cause.
        (
            "(APIServer pid=1) ERROR 08-07 01:36:12 [registry.py:415] subprocess.CalledProcessError: Command "
            "'['/usr/bin/python', '-m', 'vllm.model_executor.models.registry']' returned non-zero exit status 1.",
            None,
        ),
        ("(APIServer pid=1) ERROR 08-07 01:36:12 [registry.py:415] RuntimeError: Error raised in subprocess:", None),
        # vllm-project/vllm#49101
        (
            "Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:455 'invalid argument'",
            "Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:455 'invalid argument'",
        ),
        ("RuntimeError: Engine core initialization failed. See root cause above.", None),
        ("(APIServer pid=1) WARNING 11-21 20:25:33 [system_utils.py:255] can cause `OSError: [Errno 24]`", None),
        ("Loading safetensors checkpoint shards: 100% Completed | 1/1", None),
    ],
)
def test_error_lines_of_the_log(line: str, error: str | None) -> None:
    assert vllm.Log().find_error(line + "\n") == error


def test_errors_of_requests_are_no_reason() -> None:
    log = vllm.Log()
    assert log.find_error("INFO:     Application startup complete.\n") is None
    assert log.has_served
    assert log.find_error("ValueError: a request's\n") is None


@pytest.mark.parametrize(
    ("ending", "served", "code", "line"),
    [
        (Ending(False, False, None, "a cause", 1), False, 1, "vLLM ended while loading: a cause"),
        (Ending(False, False, None, "a flag", 2), False, 2, "vLLM ended while loading: a flag"),
        (Ending(False, False, None, None, 0), True, 1, "vLLM ended while serving"),
        (
            Ending(False, False, signal.SIGKILL, None),
            False,
            1,
            "vLLM was killed while loading: probably out of memory",
        ),
        (Ending(False, False, signal.SIGSEGV, "x"), True, 1, "vLLM crashed (SIGSEGV) while serving: x"),
        (Ending(True, False, signal.SIGTERM, "whatever"), False, 0, None),
    ],
)
def test_how_an_end_is_explained(ending: Ending, served: bool, code: int, line: str | None) -> None:
    assert explain_ending(ending, has_served=served) == (code, line)


def test_what_is_checked_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def told(*arguments: str) -> tuple[int, str]:
        return vllm.run(arguments), capfd.readouterr().err.splitlines()[-1]

    assert told("m", "--port", "1") == (1, "No module named 'vllm': install the extra `vllm`")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert told("m", "--port", "x", "--dtype", "float32") == (2, "--port: a port is a number from 1 to 65535")
    assert told("m", "--port") == (2, "argument --port: expected one argument")
    assert told("m", "--host", "--port", "1") == (2, "argument --host: expected one argument")
    assert told(f"{tmp_path}/no", "--port", "1") == (1, f"there is no model {tmp_path}/no")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, line = told(str(tmp_path), "--host", "127.0.0.1", "--port", str(port))
    assert (code, line) == (3, f"port {port} on 127.0.0.1 is taken: stop what listens there, or choose another")
