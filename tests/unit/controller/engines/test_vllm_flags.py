"""The flags that are written for vLLM, against those of the locked release, and what it changed since the tested."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

from controller.engines.options import Flag, JsonFlag, Option, PathFlag, SpecialFlag, Switch, list_options
from controller.engines.vllm_fields import VllmFields
from tests.support.ci_cache import REPOSITORY
from tests.support.installed_engines import programs
from tests.support.vllm_flags import (
    LOCKED,
    TESTED,
    Flags,
    ask_parser,
    compare_flags,
    read_flags,
    read_version,
    render_flags,
)

FLAGS = read_flags()
OPTIONS = [option for option in list_options(VllmFields) if option.flag is not None]
EXTRA = {"--name", "--verbose"}
"""In the golden's `extra_args`, which are anybody's."""
TAKES = {Flag: {"value"}, JsonFlag: {"value"}, PathFlag: {"value", "values"}, Switch: {"nothing"}}


def flags_of(option: Option) -> list[str]:
    match option.flag:
        case Switch(on, off):
            return [each for each in (on, off) if each]
        case SpecialFlag(name):
            return name.split()[:1]
        case flag:
            assert flag is not None
            return [flag.name]


def find_flag(flags: Flags, flag: str) -> dict[str, Any] | None:
    """What a release says of a flag, by any of its names. From 0.33 on `--no-enable-x` is an old name of `--disable-x`,
    which it still takes (vllm/utils/argparse_utils.py)."""
    names = {flag, flag.replace("--no-enable-", "--disable-")}
    found = [about for name, about in flags.items() if names & {name, *about.get("also", ())}]
    return dict(found[0]) if found else None


def rendered_flags(value: Any) -> Iterator[str]:
    """Every flag in the command lines of a golden."""
    if isinstance(value, list):
        yield from (each for each in value if isinstance(each, str) and each.startswith("--") and len(each) > 2)
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from rendered_flags(each)


def test_the_two_releases_are_the_one_that_is_tested_and_the_one_that_is_locked() -> None:
    assert list(FLAGS) == [read_version(TESTED), read_version(LOCKED)]
    assert render_flags(FLAGS) == Path(REPOSITORY / "tests/support/vllm_flags.json").read_text()


@pytest.mark.parametrize("version", FLAGS)
@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_s_flag_is_there_and_takes_what_is_written(version: str, option: Option) -> None:
    for flag in flags_of(option):
        about = find_flag(FLAGS[version], flag)
        assert about is not None, flag
        assert about["takes"] in TAKES.get(type(option.flag), {"nothing", "value"})
        for literal in (option.info.annotation, *get_args(option.info.annotation)):
            if get_origin(literal) is Literal and "choices" in about:
                assert {str(each) for each in get_args(literal)} <= {*about["choices"]}


@pytest.mark.parametrize("version", FLAGS)
def test_every_flag_in_a_command_line_is_there(version: str) -> None:
    golden = json.loads((REPOSITORY / "tests/golden/engines/vllm_serve.json").read_text())
    written = {flag.split("=")[0] for flag in rendered_flags(golden)} - EXTRA
    assert {"--max-num-seqs", "--enable-lora", "--served-model-name"} <= written
    assert [flag for flag in sorted(written) if find_flag(FLAGS[version], flag) is None] == []


def test_what_the_locked_release_changed() -> None:
    changes = compare_flags(FLAGS[read_version(TESTED)], FLAGS[read_version(LOCKED)])
    assert changes.added == ("--monokernel", "--reasoning-effort-map", "--sleep-mode-backend", "--watchdog-config")
    assert changes.removed == ()
    renamed = {flag: parts["also"] for flag, parts in changes.changed.items() if "also" in parts}
    assert len(renamed) == 50
    for flag, (before, after) in renamed.items():
        opposite = (
            flag.replace("--enable-", "--disable-") if "--enable-" in flag else flag.replace("--disable-", "--enable-")
        )
        assert (before, after) == ([f"--no-{flag[2:]}"], [opposite])
    others = {flag: parts for flag, parts in changes.changed.items() if flag not in renamed}
    cache_types = others.pop("--kv-cache-dtype")["choices"]
    assert {"auto", "fp8", "fp8_e4m3", "fp8_e5m2"} <= {*cache_types[0]}
    assert cache_types[1] is None, "checked later, because platforms may register more"
    assert others == {
        "--gdn-prefill-backend": {"choices": ([], ["sycl"])},
        "--mamba-cache-mode": {"default": ("none", None)},
        "--moe-backend": {"choices": ([], ["aiter_triton_mxfp4_mxfp4"])},
        "--reasoning-parser": {"type": ("str", None)},
        "--spec-method": {"choices": (["medusa", "mlp_speculator"], ["step5_mtp"])},
        "--tool-strict-level": {"choices": ([], ["None"]), "default": ("auto", None), "type": ("str", None)},
    }


def test_changes_are_told_by_flag() -> None:
    before: Flags = {
        "--a": {"takes": "value", "choices": ["x", "y"]},
        "--b": {"takes": "nothing"},
        "--c": {"takes": "value"},
    }
    after: Flags = {
        "--a": {"takes": "value", "choices": ["y", "z"]},
        "--c": {"takes": "value", "default": 1},
        "--d": {},
    }
    changes = compare_flags(before, after)
    assert str(changes) == "+ --d\n- --b\n~ --a: choices ['x'] -> ['z']\n~ --c: default None -> 1"
    assert changes
    assert not compare_flags(after, after)


@pytest.mark.engines
@pytest.mark.vllm
def test_the_tested_release_s_own_parser_says_the_same() -> None:
    programs()
    assert str(compare_flags(FLAGS[read_version(TESTED)], ask_parser())) == ""


@pytest.mark.engines
@pytest.mark.vllm
def test_the_parser_answers_by_the_files_of_another_release(tmp_path: Path) -> None:
    """As the newest release is asked: its files come first, and what it says is its own."""
    package = tmp_path / "vllm"
    package.mkdir()
    (package / "__init__.py").write_text("import vllm_lacks\n")
    (tmp_path / "METADATA").write_text("Requires-Dist: other>=1\n")
    with pytest.raises(RuntimeError, match=r"vllm_lacks|requirement"):
        ask_parser(tmp_path)
