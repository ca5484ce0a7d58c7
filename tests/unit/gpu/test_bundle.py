"""A bundle for a host without a network: its parts, and what unpacks them."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.gpu import bundle as bundle_module
from tests.gpu.bundle import SUMS, build_parser, choose_pins, environment_of, list_own_pins, write_bundle
from tests.gpu.unpack import UnpackError, find_parts, main, unpack_parts
from tests.supply_chain.locks import Pin, read_lock
from tests.support.ci_cache import REPOSITORY

ABOUT = {"commit": "0123", "version": "9.1", "python": "{}.{}".format(*sys.version_info), "cpu": True, "without": []}
PART = 1000


def make_tree(folder: Path) -> Path:
    """Files of a few sizes, one larger than a part, one that may be run, and a link."""
    (folder / "sub").mkdir(parents=True)
    (folder / "large").write_bytes(os.urandom(5 * PART))
    (folder / "empty").write_bytes(b"")
    (folder / "sub" / "program").write_text("#!/bin/sh\n")
    (folder / "sub" / "program").chmod(0o755)
    (folder / "link").symlink_to("sub/program")
    return folder


def make_bundle(folder: Path, tree: Path) -> Path:
    write_bundle(folder, {"llama-server": tree}, ABOUT, PART)
    return folder


def read_tree(folder: Path) -> dict[str, tuple[bytes, bool]]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): (path.read_bytes(), os.access(path, os.X_OK)) for path in files}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "tree")


@pytest.fixture
def bundle(tmp_path: Path, tree: Path) -> Path:
    (tmp_path / "bundle").mkdir()
    return make_bundle(tmp_path / "bundle", tree)


def test_what_was_packed_is_unpacked_from_parts_of_the_size(tmp_path: Path, tree: Path, bundle: Path) -> None:
    parts = sorted(bundle.glob("part-*"))
    assert [part.stat().st_size for part in parts[:-1]] == [PART] * (len(parts) - 1)
    assert 5 <= len(parts) <= 8
    assert 0 < parts[-1].stat().st_size <= PART
    assert unpack_parts(find_parts([bundle]), tmp_path / "there") == ABOUT
    assert read_tree(tmp_path / "there/llama-server") == read_tree(tree)


def test_parts_may_lie_in_several_folders(tmp_path: Path, tree: Path, bundle: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (bundle / "part-001").rename(other / "part-001")
    with pytest.raises(UnpackError, match=r"^missing: part-001: name the folders"):
        find_parts([bundle])
    unpack_parts(find_parts([bundle, other]), tmp_path / "there")
    assert read_tree(tmp_path / "there/llama-server") == read_tree(tree)


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (["--bundle", "bundle"], "bundle lies in the work tree, which the bundle holds: name another folder"),
        (["--bundle", "/nowhere/bundle", "--part-size", "0"], "--part-size is a number of MiB above 0"),
    ],
)
def test_what_would_bundle_itself_or_never_end_is_refused(
    words: list[str], refusal: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(REPOSITORY)
    with pytest.raises(SystemExit):
        bundle_module.main(words)
    assert capsys.readouterr().err.endswith(f"error: {refusal}\n")
    assert not Path(words[1]).exists()


def test_a_damaged_part_is_told_and_a_whole_copy_taken(tmp_path: Path, bundle: Path) -> None:
    other, part = tmp_path / "other", bundle / "part-002"
    other.mkdir()
    (other / "part-002").write_bytes(part.read_bytes())
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    with pytest.raises(UnpackError, match=r"part-002 is damaged: copy it again$"):
        find_parts([bundle])
    assert find_parts([bundle, other])[2] == other / "part-002"
    with pytest.raises(UnpackError, match=f"there is no {SUMS} in "):
        find_parts([other])


def write_wheel(folder: Path, name: str, files: dict[str, str]) -> None:
    """A wheel of these files."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-1.dist-info"
    files = files | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{each},,\n" for each in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(folder / f"{name}-1-py3-none-any.whl", "w") as archive:
        for each, content in files.items():
            archive.writestr(each, content)


def test_the_host_s_environment_is_made_of_the_bundle_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for pip that puts the wheels into the environment, and notes what it was asked."""
    pip = "import pathlib, sys, sysconfig, zipfile\nwheels = [each for each in sys.argv if each.endswith('.whl')]\n"
    pip += "for each in wheels: zipfile.ZipFile(each).extractall(sysconfig.get_path('purelib'))\n"
    pip += "pathlib.Path(sys.prefix, 'asked').write_text(' '.join(sys.argv[1:5]))\n"
    wheels = tmp_path / "wheels"
    write_wheel(wheels / "roundhouse", "pip", {"pip/__main__.py": pip})
    write_wheel(wheels / "roundhouse", "one", {"one.py": "SAYS = 'one'\n"})
    write_wheel(wheels / "vllm", "two", {"two.py": "SAYS = 'two'\n"})
    tests = tmp_path / "tree/tests/gpu"
    tests.mkdir(parents=True)
    (tests / "run").write_text('#!/bin/sh\necho "$ROUNDHOUSE_PYTHON" "$ROUNDHOUSE_CACHE" "$@"\n')
    (tests / "run").chmod(0o755)
    bundle, target = tmp_path / "bundle", tmp_path / "a target"
    bundle.mkdir()
    write_bundle(bundle, {"wheels": wheels, "roundhouse": tmp_path / "tree"}, ABOUT, PART)
    assert (bundle / "unpack.py").exists()
    assert main([str(target), str(bundle)]) == 0
    assert capsys.readouterr().out == f"unpacked 0123; now: {target / 'run'} --cpu\n"
    monkeypatch.delenv("ROUNDHOUSE_CACHE", raising=False)
    for name, module in (("python", "one"), ("vllm", "two")):
        say = [str(target / name / "bin/python"), "-c", f"import {module}; print({module}.SAYS)"]
        assert subprocess.run(say, capture_output=True, text=True, check=True).stdout == f"{module}\n"
        assert (target / name / "asked").read_text() == "install --quiet --no-index --no-deps"
    version = "import importlib.metadata as m; print(m.version('roundhouse'))"
    told = subprocess.run([target / "python/bin/python", "-c", version], capture_output=True, text=True, check=True)
    assert told.stdout == "9.1\n", "the programs ask for it"
    run = subprocess.run([target / "run", "--small", "x y"], capture_output=True, text=True, check=True).stdout
    words = f"--as-is --llama-server {target}/llama-server/llama-server --vllm {target}/vllm/bin/vllm --small x y"
    assert run == f"{target}/python/bin/python {target}/cache {words}\n"


def test_wheels_of_another_python_are_refused(tmp_path: Path, tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    write_bundle(bundle, {"llama-server": tree}, ABOUT | {"python": "3.1"}, PART)
    assert main([str(tmp_path / "there"), str(bundle)]) == 2
    own = ABOUT["python"]
    words = f"the wheels are for Python 3.1, this is {own}: use the other, or --python {own}"
    assert capsys.readouterr().err == f"unpack: {words}\n"


def test_what_is_downloaded_is_what_is_locked_for_the_host_s_python() -> None:
    pins = {pin.name: pin for pin in list_own_pins("3.12")}
    assert {"pip", "pytest", "pluggy", "gguf", "numpy", "openai", "fastapi", "pydantic-core", "docker"} <= pins.keys()
    assert not {"mypy", "ruff", "colorama", "tomli"} & pins.keys()
    assert all(pin.hashes for pin in pins.values())
    earlier, later = "a==1 ; python_full_version < '3.12'", "a==2 ; python_full_version >= '3.12'"
    lock = f"{earlier} --hash=sha256:{'0' * 64}\n{later} --hash=sha256:{'0' * 64}\n"
    for python, version in (("3.11", "1"), ("3.12", "2")):
        [pin] = read_lock(lock, environment_of(python))
        assert pin.version == version


def test_what_the_host_has_is_left_out() -> None:
    pins = [Pin(name, "1", frozenset()) for name in ("torch", "torchvision", "nvidia-cublas", "vllm")]
    assert [pin.name for pin in choose_pins(pins, ["torch", "nvidia-*"])] == ["torchvision", "vllm"]


def test_a_part_is_as_large_as_is_said() -> None:
    given = build_parser().parse_args(["--bundle", "there", "--part-size", "60"])
    assert (given.part_size, given.python) == (60, ABOUT["python"])
