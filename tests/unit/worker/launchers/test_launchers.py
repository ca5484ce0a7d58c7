"""Launchers of the embedded llama-server, of vLLM and of the bridge to an MCP server: flags, checks, endings."""

from __future__ import annotations

import importlib
import importlib.util
import signal
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.require import require
from worker.launchers import llama_server, mcp, vllm
from worker.launchers.child_process import Ending
from worker.launchers.llama_server import apply_settings, check_devices, first_error
from worker.launchers.llama_server_flags import OPTIONS as LLAMA_SERVER_OPTIONS
from worker.launchers.llama_server_flags import Adapter, Member, UsageError, parse_flags, value_of
from worker.launchers.mcp import Options, find_error, parse_arguments, server_environment

BASE = ("--model", "m.gguf", "--port", "8081")
REFUSAL = 'error while handling argument "--device": invalid device: CUDA0'
MANY_SHARES = ",".join("1" * 129)
SCALED = "it is paths with their scales, as a.gguf:0.5,b.gguf:1"
VALUES = {
    "--flash-attn": "on",
    "--cache-type-k": "q8_0",
    "--cache-type-v": "bf16",
    "--spec-type": "draft-mtp,ngram-mod",
    "--pooling": "mean",
    "--fit": "off",
    "--reasoning-format": "deepseek-legacy",
    "--chat-template-file": "/dev/null",
    "--split-mode": "row",
    "--load-mode": "mmap+mlock",
    "--rope-scaling": "yarn",
    "--rope-scale": "4",
    "--spec-draft-type-k": "q8_0",
    "--spec-draft-type-v": "q4_0",
    "--slot-save-path": "/tmp",
    "--lora": "a.gguf,b.gguf",
    "--lora-scaled": "a.gguf:0.5,b.gguf:-1",
}


def example(name: str) -> list[str]:
    """A flag with a value that it takes."""
    if LLAMA_SERVER_OPTIONS[name].read is None:
        return [name]
    longest = next(known for known, option in LLAMA_SERVER_OPTIONS.items() if option is LLAMA_SERVER_OPTIONS[name])
    return [name, VALUES.get(longest, "7")]


@pytest.mark.embedded
@pytest.mark.parametrize("name", sorted(LLAMA_SERVER_OPTIONS.keys() - {"--device", "-dev"}))
def test_every_flag_sets_attributes_that_xllamacpp_has(name: str) -> None:
    available = importlib.util.find_spec("xllamacpp") is not None
    require("embedded", available, "xllamacpp is not installed (extra `embedded`)")
    xllamacpp = importlib.import_module("xllamacpp")
    settings = parse_flags([*BASE, *example(name)], {})
    params = xllamacpp.CommonParams()
    apply_settings(settings, params, xllamacpp)
    *owners, last = settings[-1].attribute.split(".")
    owner = params
    for part in owners:
        owner = getattr(owner, part)
    wanted = settings[-1].value
    found = getattr(owner, last)
    if isinstance(wanted, Member):
        assert found == getattr(getattr(xllamacpp, wanted.enum), wanted.name)
    elif isinstance(wanted, Path):
        assert found == str(wanted)
    elif last == "lora_adapters":
        assert [Adapter(each.path, each.scale) for each in found] == wanted
    elif last == "types":
        expected = ["COMMON_SPECULATIVE_TYPE_DRAFT_MTP", "COMMON_SPECULATIVE_TYPE_NGRAM_MOD"]
        assert [each.name for each in found] == expected
    else:
        assert found == wanted


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        (["-c", "512", "--ctx-size", "1024"], {"n_ctx": 1024, "n_parallel": -1, "kv_unified": None}),
        (["--n-gpu-layers", "all"], {"n_gpu_layers": -2}),
        (["--alias", "a, b"], {"model_alias": {"a", "b"}}),
        (["--host", "127.0.0.1,::1"], {"hostnames": ["127.0.0.1", "::1"]}),
        (["--fit", "on"], {"fit_params": True}),
        (["-ts", "12000,24000"], {"tensor_split": [12000.0, 24000.0, *[0.0] * 126]}),
        (["-ts", "12000/24000"], {"tensor_split": [12000.0, 24000.0, *[0.0] * 126]}),
        (["--reranking"], {"embedding": True, "pooling_type": Member("llama_pooling_type", "LLAMA_POOLING_TYPE_RANK")}),
        (["--lora", "a.gguf,b.gguf"], {"lora_adapters": [Adapter("a.gguf", 1.0), Adapter("b.gguf", 1.0)]}),
        (["--lora-scaled", "a.gguf:0,b:-0.5"], {"lora_adapters": [Adapter("a.gguf", 0.0), Adapter("b", -0.5)]}),
        (["--threads", "3"], {"cpuparams.n_threads": 3, "cpuparams_batch.n_threads": 3}),
    ],
)
def test_what_flags_of_llama_server_set(arguments: list[str], values: dict[str, Any]) -> None:
    settings = parse_flags([*BASE, *arguments], {})
    assert {name: value_of(settings, name) for name in values} == values


CUDA = [{"name": f"CUDA{number}", "type": SimpleNamespace(name="GGML_BACKEND_DEVICE_TYPE_GPU")} for number in (0, 1)]
CPU = [{"name": "CPU", "type": SimpleNamespace(name="GGML_BACKEND_DEVICE_TYPE_CPU")}]
"""As `xllamacpp.get_device_info()` tells devices, in part."""


def test_devices_are_what_is_seen_and_no_parameter() -> None:
    settings = parse_flags([*BASE, "--device", "CUDA0,CUDA1"], {})
    assert value_of(settings, "devices") == ["CUDA0", "CUDA1"]
    apply_settings([each for each in settings if each.attribute == "devices"], SimpleNamespace(), None)
    check_devices(["CUDA0", "CUDA1"], [*CUDA, *CPU])
    check_devices(["none"], CPU)


@pytest.mark.parametrize(
    ("named", "seen", "message"),
    [
        (["CUDA0"], CPU, "invalid device: CUDA0"),
        (["CUDA0", "CUDA1"], [*CUDA[:1], *CPU], "invalid device: CUDA1"),
        (["CPU"], CPU, "invalid device: CPU"),
        (["CUDA0"], [*CUDA, *CPU], "the embedded llama-server uses each GPU that it sees, so CUDA1 too: name a llama-"),
        (["none"], [*CUDA, *CPU], "the embedded llama-server uses each GPU that it sees, so CUDA0, CUDA1 too: name a"),
    ],
)
def test_devices_that_it_would_not_use_or_use_beside_those_named(named: list[str], seen: Any, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        check_devices(named, seen)
    assert str(raised.value).startswith(f'error while handling argument "--device": {message}')


def test_the_folder_for_slots_is_one_and_ends_with_a_slash(tmp_path: Path) -> None:
    for text in (str(tmp_path), f"{tmp_path}/"):
        assert value_of(parse_flags([*BASE, "--slot-save-path", text], {}), "slot_save_path") == f"{tmp_path}/"
    with pytest.raises(UsageError, match=r"--slot-save-path .*/none: it is no folder"):
        parse_flags([*BASE, "--slot-save-path", str(tmp_path / "none")], {})


def test_the_key_comes_from_the_environment_and_a_flag_overrules_it() -> None:
    environment = {"LLAMA_API_KEY": "one,two"}
    assert value_of(parse_flags(BASE, environment), "api_keys") == ["one", "two"]
    assert value_of(parse_flags([*BASE, "--api-key", "three"], environment), "api_keys") == ["three"]
    assert value_of(parse_flags(BASE, {"LLAMA_API_KEY": ""}), "api_keys") is None


def test_a_template_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("{{ x }}")
    settings = parse_flags([*BASE, "--chat-template-file", str(tmp_path / "t.jinja")], {})
    assert value_of(settings, "chat_template") == "{{ x }}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            [*BASE, "--control-vector", "x"],
            "the embedded llama-server does not take --control-vector: name a llama-server program instead",
        ),
        ([*BASE, "--lora-scaled", "a.gguf"], f"--lora-scaled a.gguf: {SCALED}"),
        ([*BASE, "--lora-scaled", "a:b:1"], f"--lora-scaled a:b:1: {SCALED}"),
        ([*BASE, "--lora-scaled", "a:x"], "--lora-scaled a:x: it is a number"),
        ([*BASE, "--ctx-size", "x"], "--ctx-size x: it is a whole number"),
        ([*BASE, "--ctx-size"], "--ctx-size needs a value"),
        ([*BASE, "--spec-draft-p-min", "x"], "--spec-draft-p-min x: it is a number"),
        ([*BASE, "--cache-type-k", "q9"], "--cache-type-k q9: it is one of f32, f16, bf16, q8_0"),
        ([*BASE, "--tensor-split", "1,x"], "--tensor-split 1,x: it is numbers, as 3,1"),
        ([*BASE, "--tensor-split", ","], "--tensor-split ,: it is numbers, as 3,1"),
        ([*BASE, "--tensor-split", MANY_SHARES], f"--tensor-split {MANY_SHARES}: it is numbers, as 3,1"),
        ([*BASE, "--flash-attn", "maybe"], "--flash-attn maybe: it is one of on, "),
        ([*BASE, "--fit", "maybe"], "--fit maybe: it is on or off"),
        ([*BASE, "--spec-type", "draft-mtp,guess"], "--spec-type draft-mtp,guess: it is one of none, draft-simple"),
        ([*BASE, "--port", "70000"], "--port 70000: a port is a number from 1 to 65535"),
        ([*BASE, "--chat-template-file", "nope"], "--chat-template-file: cannot open nope: No such file or directory"),
        (["--port", "1"], "--model is missing"),
        (["--model", "m.gguf"], "--port is missing"),
    ],
)
def test_a_command_line_that_is_not_taken(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_flags(arguments, {})
    assert f"error: invalid argument: {message}" in str(raised.value)


def test_llama_server_s_own_variables_are_refused_not_overlooked() -> None:
    with pytest.raises(UsageError, match="does not read LLAMA_ARG_CTX_SIZE"):
        parse_flags(BASE, {"LLAMA_ARG_CTX_SIZE": "1", "PATH": "/bin"})


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("0.00.003.893 E gguf_init: failed to open 'x'\n", "gguf_init: failed to open 'x'"),
        ("0.00.004.010 E srv    load_model: failed to load model, 'x'", "srv load_model: failed to load model, 'x'"),
        ("/x/ggml.c:1: GGML_ASSERT(a == b) failed\n", "/x/ggml.c:1: GGML_ASSERT(a == b) failed"),
        ("terminate called after 'std::bad_alloc'", "terminate called after 'std::bad_alloc'"),
        (f"{REFUSAL}\n", REFUSAL),
        ("0.00.010.865 I srv          init: model loaded\n", None),
        ("0.00.001.979 W srv          init: security: no API key is set", None),
        ("", None),
    ],
)
def test_error_lines_of_llama_server_s_log(line: str, error: str | None) -> None:
    assert first_error(line) == error


LOADING = "while loading m.gguf"
ABORTED = (signal.SIGABRT, "GGML_ASSERT(x)")
NOT_BOUND = "couldn't bind socket"


@pytest.mark.parametrize(
    ("ending", "code", "line"),
    [
        (Ending(False, False, None, "bad tensor"), 1, f"llama-server ended {LOADING}: bad tensor"),
        (Ending(False, False, signal.SIGKILL, None), 1, f"llama-server was killed {LOADING}: probably out of memory"),
        (Ending(False, False, *ABORTED), 1, f"llama-server crashed (SIGABRT) {LOADING}: GGML_ASSERT(x)"),
        (Ending(False, True, signal.SIGSEGV, "an old error"), 1, "llama-server crashed (SIGSEGV) while serving"),
        (Ending(False, True, signal.SIGKILL, None), 1, "llama-server was killed while serving: probably out of memory"),
        (Ending(False, False, None, f"start: {NOT_BOUND}"), 3, f"port 8081 is taken: start: {NOT_BOUND}"),
        (Ending(True, True, signal.SIGTERM, "whatever"), 0, None),
        (Ending(True, False, signal.SIGTERM, "whatever"), 0, None),
    ],
)
def test_how_an_end_of_llama_server_is_explained(ending: Ending, code: int, line: str | None) -> None:
    assert llama_server.explain_ending(ending, parse_flags(BASE, {})) == (code, line)


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
        ("Failed: Cuda error /csrc/all_reduce.cuh:455 'x'", "Failed: Cuda error /csrc/all_reduce.cuh:455 'x'"),
        ("RuntimeError: Engine core initialization failed. See root cause above.", None),
        ("(APIServer pid=1) WARNING 11-21 20:25:33 [system_utils.py:255] can cause `OSError: [Errno 24]`", None),
        ("Loading safetensors checkpoint shards: 100% Completed | 1/1", None),
    ],
)
def test_error_lines_of_vllm_s_log(line: str, error: str | None) -> None:
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
        (Ending(False, False, signal.SIGKILL, None), False, 1, "vLLM was killed while loading: probably out of memory"),
        (Ending(False, False, signal.SIGSEGV, "x"), True, 1, "vLLM crashed (SIGSEGV) while serving: x"),
        (Ending(True, False, signal.SIGTERM, "whatever"), False, 0, None),
    ],
)
def test_how_an_end_of_vllm_is_explained(ending: Ending, served: bool, code: int, line: str | None) -> None:
    assert vllm.explain_ending(ending, has_served=served) == (code, line)


def test_vllm_is_not_started_where_it_cannot_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refusal(*arguments: str) -> tuple[int, str]:
        return vllm.run(arguments), capfd.readouterr().err.splitlines()[-1]

    assert refusal("m", "--port", "1") == (1, "No module named 'vllm': install the extra `vllm`")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert refusal("m", "--port", "x", "--dtype", "float32") == (2, "--port: a port is a number from 1 to 65535")
    assert refusal("m", "--port") == (2, "argument --port: expected one argument")
    assert refusal("m", "--host", "--port", "1") == (2, "argument --host: expected one argument")
    assert refusal(f"{tmp_path}/no", "--port", "1") == (1, f"there is no model {tmp_path}/no")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, line = refusal(str(tmp_path), "--host", "127.0.0.1", "--port", str(port))
    assert (code, line) == (3, f"port {port} on 127.0.0.1 is taken: stop what listens there, or choose another")


BRIDGE_FLAGS = ("--host", "127.0.0.1", "--port", "4242", "--name", "time")
ENDED = "the bridge of the MCP server mcp-server-time ended"
BRIDGE = Options("127.0.0.1", 4242, "time", (), ("mcp-server-time",))


def test_everything_behind_the_dashes_is_the_servers_command() -> None:
    parsed = parse_arguments(
        [*BRIDGE_FLAGS, "--pass-env", "A", "--pass-env", "B", "--", "npx", "-y", "--", "--port", "1"]
    )
    assert parsed == Options("127.0.0.1", 4242, "time", ("A", "B"), ("npx", "-y", "--", "--port", "1"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*BRIDGE_FLAGS], "the server's command is missing after `--`"),
        ([*BRIDGE_FLAGS, "--"], "the server's command is missing after `--`"),
        ([*BRIDGE_FLAGS, "--shell", "--", "x"], "unknown argument --shell"),
        ([*BRIDGE_FLAGS[:4], "--", "x"], "the following arguments are required: --name"),
        ([*BRIDGE_FLAGS, "--pass-env", "--", "x"], "argument --pass-env: expected one argument"),
        ([*BRIDGE_FLAGS, "--help", "--", "x"], "unknown argument --help"),
        (["--host", "::1", "--port", "0", "--name", "n", "--", "x"], "a port is a number from 1 to 65535"),
    ],
)
def test_a_wrong_command_line_of_the_bridge_is_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("`", ".")):
        parse_arguments(arguments)


def test_the_server_gets_what_is_named_the_locale_and_the_marks_of_its_replica() -> None:
    environment = {
        **{name: name for name in ("A", "B", "LANG", "LC_ALL", "TZ", "ROUNDHOUSE_START", "ROUNDHOUSE_REPLICA")},
        **dict.fromkeys(("ROUNDHOUSE_ENGINE_TOKEN", "HF_TOKEN", "PYTHONPATH", "LD_LIBRARY_PATH"), "secret"),
    }
    assert server_environment(environment, ("A",)) == {
        name: name for name in ("A", "LANG", "LC_ALL", "TZ", "ROUNDHOUSE_START", "ROUNDHOUSE_REPLICA")
    }


@pytest.mark.parametrize(
    ("ending", "outcome"),
    [
        (Ending(True, True, None, "x", 0), (0, None)),
        (Ending(False, True, None, "the MCP server x ended", 1), (1, "the MCP server x ended")),
        (Ending(False, True, signal.SIGKILL, None), (1, f"{ENDED} (SIGKILL)")),
        (Ending(False, False, None, None, 5), (1, f"{ENDED} (code 5)")),
    ],
)
def test_how_an_end_of_the_bridge_is_explained(ending: Ending, outcome: tuple[int, str | None]) -> None:
    assert mcp.explain_ending(ending, BRIDGE) == outcome


def test_only_the_bridges_own_lines_are_reasons() -> None:
    assert find_error("roundhouse mcp: the MCP server x ended\n") == "the MCP server x ended"
    assert find_error("ERROR of the server: roundhouse mcp: no\n") is None
