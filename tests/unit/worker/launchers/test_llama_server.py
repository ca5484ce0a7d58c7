"""The launcher of the embedded llama-server: its flags, and how it explains an end."""

from __future__ import annotations

import importlib
import importlib.util
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.require import require
from worker.launchers.child_process import Ending
from worker.launchers.llama_server import apply_settings, check_devices, explain_ending, first_error
from worker.launchers.llama_server_flags import OPTIONS, Adapter, Member, Setting, UsageError, parse_flags, value_of

BASE = ("--model", "m.gguf", "--port", "8081")
REFUSAL = 'error while handling argument "--device": invalid device: CUDA0'
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
    if OPTIONS[name].read is None:
        return [name]
    longest = next(known for known, option in OPTIONS.items() if option is OPTIONS[name])
    return [name, VALUES.get(longest, "7")]


@pytest.mark.embedded
@pytest.mark.parametrize("name", sorted(OPTIONS.keys() - {"--device", "-dev"}))
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
        assert [each.name for each in found] == [
            "COMMON_SPECULATIVE_TYPE_DRAFT_MTP",
            "COMMON_SPECULATIVE_TYPE_NGRAM_MOD",
        ]
    else:
        assert found == wanted


def test_the_last_of_two_wins_and_the_slots_default_to_llama_server_s_own() -> None:
    settings = parse_flags([*BASE, "-c", "512", "--ctx-size", "1024"], {})
    assert value_of(settings, "n_ctx") == 1024
    assert value_of(settings, "n_parallel") == -1
    assert value_of(settings, "kv_unified") is None


def test_values_that_are_words() -> None:
    settings = parse_flags(
        [*BASE, "--n-gpu-layers", "all", "--alias", "a, b", "--host", "127.0.0.1,::1", "--fit", "on"], {}
    )
    assert value_of(settings, "n_gpu_layers") == -2
    assert value_of(settings, "model_alias") == {"a", "b"}
    assert value_of(settings, "hostnames") == ["127.0.0.1", "::1"]
    assert value_of(settings, "fit_params") is True


def test_shares_of_gpus_are_a_list_of_xllamacpp_s_length() -> None:
    for text in ("12000,24000", "12000/24000"):
        assert value_of(parse_flags([*BASE, "-ts", text], {}), "tensor_split") == [12000.0, 24000.0, *[0.0] * 126]


def test_reranking_is_embedding_with_its_pooling() -> None:
    settings = parse_flags([*BASE, "--reranking"], {})
    assert value_of(settings, "embedding") is True
    assert value_of(settings, "pooling_type") == Member("llama_pooling_type", "LLAMA_POOLING_TYPE_RANK")


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


def test_adapters_have_scales(tmp_path: Path) -> None:
    plain = parse_flags([*BASE, "--lora", "a.gguf,b.gguf"], {})
    assert value_of(plain, "lora_adapters") == [Adapter("a.gguf", 1.0), Adapter("b.gguf", 1.0)]
    scaled = parse_flags([*BASE, "--lora-scaled", "a.gguf:0,b.gguf:-0.5"], {})
    assert value_of(scaled, "lora_adapters") == [Adapter("a.gguf", 0.0), Adapter("b.gguf", -0.5)]


def test_the_folder_for_slots_is_one_and_ends_with_a_slash(tmp_path: Path) -> None:
    for text in (str(tmp_path), f"{tmp_path}/"):
        assert value_of(parse_flags([*BASE, "--slot-save-path", text], {}), "slot_save_path") == f"{tmp_path}/"
    with pytest.raises(UsageError, match=r"--slot-save-path .*/none: it is no folder"):
        parse_flags([*BASE, "--slot-save-path", str(tmp_path / "none")], {})


def test_threads_are_for_prompts_too() -> None:
    settings = parse_flags([*BASE, "--threads", "3"], {})
    assert value_of(settings, "cpuparams.n_threads") == value_of(settings, "cpuparams_batch.n_threads") == 3


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
        (
            [*BASE, "--lora-scaled", "a.gguf"],
            f"--lora-scaled a.gguf: {SCALED}",
        ),
        (
            [*BASE, "--lora-scaled", "a:b:1"],
            f"--lora-scaled a:b:1: {SCALED}",
        ),
        ([*BASE, "--lora-scaled", "a:x"], "--lora-scaled a:x: it is a number"),
        ([*BASE, "--ctx-size", "x"], "--ctx-size x: it is a whole number"),
        ([*BASE, "--ctx-size"], "--ctx-size needs a value"),
        ([*BASE, "--spec-draft-p-min", "x"], "--spec-draft-p-min x: it is a number"),
        ([*BASE, "--cache-type-k", "q9"], "--cache-type-k q9: it is one of f32, f16, bf16, q8_0"),
        ([*BASE, "--tensor-split", "1,x"], "--tensor-split 1,x: it is numbers, as 3,1"),
        ([*BASE, "--tensor-split", ","], "--tensor-split ,: it is numbers, as 3,1"),
        (
            [*BASE, "--tensor-split", ",".join("1" * 129)],
            f"--tensor-split {','.join('1' * 129)}: it is numbers, as 3,1",
        ),
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


def test_later_settings_win() -> None:
    settings = [Setting("n_ctx", 1), Setting("n_ctx", 2)]
    assert value_of(settings, "n_ctx") == 2
    assert value_of(settings, "port") is None


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
def test_error_lines_of_the_log(line: str, error: str | None) -> None:
    assert first_error(line) == error


LOADING = "while loading m.gguf"


@pytest.mark.parametrize(
    ("ready", "killed_by", "error", "code", "line"),
    [
        (False, None, "bad tensor", 1, f"llama-server ended {LOADING}: bad tensor"),
        (False, signal.SIGKILL, None, 1, f"llama-server was killed {LOADING}: probably out of memory"),
        (False, signal.SIGABRT, "GGML_ASSERT(x)", 1, f"llama-server crashed (SIGABRT) {LOADING}: GGML_ASSERT(x)"),
        (True, signal.SIGSEGV, "an old error", 1, "llama-server crashed (SIGSEGV) while serving"),
        (True, signal.SIGKILL, None, 1, "llama-server was killed while serving: probably out of memory"),
        (False, None, "start: couldn't bind socket", 3, "port 8081 is taken: start: couldn't bind socket"),
    ],
)
def test_how_an_end_is_explained(
    ready: bool, killed_by: signal.Signals | None, error: str | None, code: int, line: str
) -> None:
    assert explain_ending(Ending(False, ready, killed_by, error), parse_flags(BASE, {})) == (code, line)


@pytest.mark.parametrize("ready", [True, False])
def test_an_end_that_was_asked_for_needs_no_words(ready: bool) -> None:
    assert explain_ending(Ending(True, ready, signal.SIGTERM, "whatever"), parse_flags(BASE, {})) == (0, None)
