"""Images: what the build makes and is told, and what the worker's image with CUDA must have."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.supply_chain.locks import ENGINE_IMAGE_LOCKS, REPOSITORY, merge_pins, read_lock

FOUR = ["controller", "gateway", "worker", "llama-server"]
FAKE_DOCKER = """#!/bin/sh
# A Docker Engine that answers, and writes down each build: one argument a line, then an empty one.
[ "$1" = build ] || exit 0
printf '%s\\n' "$@" '' >>"$FAKE_DOCKER_BUILDS"
"""


def _run(tmp_path: Path, *command: str) -> tuple[subprocess.CompletedProcess[str], list[list[str]]]:
    """The command, and the arguments of each build that it asked the fake Docker Engine for."""
    fake, builds = tmp_path / "bin" / "docker", tmp_path / "builds"
    fake.parent.mkdir(exist_ok=True)
    fake.write_text(FAKE_DOCKER)
    fake.chmod(0o755)
    # What the make that runs the tests was told, such as ARGS, is not for this one.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "ARGS"))}
    env = {**inherited, "PATH": f"{fake.parent}:{os.environ['PATH']}", "FAKE_DOCKER_BUILDS": str(builds)}
    done = subprocess.run(command, cwd=REPOSITORY, env=env, capture_output=True, text=True, check=False)
    text = builds.read_text() if builds.exists() else ""
    return done, [each.split("\n") for each in text.split("\n\n") if each]


def _make(tmp_path: Path, *variables: str) -> list[list[str]]:
    done, builds = _run(tmp_path, "make", "images", *variables)
    assert (done.returncode, done.stderr) == (0, "")
    return builds


def _after(arguments: list[str], flag: str) -> list[str]:
    return [value for before, value in pairwise(arguments) if before == flag]


def test_four_images_are_built_where_no_engine_is_named(tmp_path: Path) -> None:
    builds = _make(tmp_path)
    assert [_after(each, "--tag") for each in builds] == [[f"roundhouse/{name}:latest"] for name in FOUR]
    assert [_after(each, "--file") for each in builds] == [[f"images/{name}/Dockerfile"] for name in FOUR]
    assert not any(_after(each, "--build-arg") for each in builds)


@pytest.mark.parametrize(
    ("engine", "cuda"),
    [("exllamav3", "nvidia/cuda:13.2.1-devel-ubuntu24.04"), ("vllm", "nvidia/cuda:13.0.2-devel-ubuntu24.04")],
)
def test_an_engine_that_compiles_kernels_gets_an_image_of_its_own(tmp_path: Path, engine: str, cuda: str) -> None:
    [build] = _make(tmp_path, f"ENGINES={engine}")
    assert _after(build, "--tag") == [f"roundhouse/worker-{engine}:latest"]
    assert _after(build, "--file") == ["images/worker-cuda/Dockerfile"]
    assert _after(build, "--build-arg") == [f"BASE_IMAGE={cuda}", f"ENGINE={engine}"]
    assert build[-1] == "."


def test_engines_without_kernels_of_their_own_share_the_worker_s_image(tmp_path: Path) -> None:
    builds = _make(tmp_path, "ENGINES=onnx exllamav3 ct2 vllm")
    assert [_after(each, "--tag") for each in builds] == [
        ["roundhouse/worker-exllamav3:latest"],
        ["roundhouse/worker-vllm:latest"],
        ["roundhouse/worker:latest"],
    ]
    assert _after(builds[2], "--build-arg") == ["ENGINES=onnx ct2"]
    assert not any("ENGINES=" in argument for build in builds[:2] for argument in build)


def test_what_the_build_may_be_told(tmp_path: Path) -> None:
    options = (
        "--base worker-vllm=mirror.example/cuda:13.0.2-devel-ubuntu24.04 --build-arg MAX_JOBS=16 "
        "--build-arg TORCH_CUDA_ARCH_LIST=9.0 --prefix ours --tag 7"
    )
    [build] = _make(tmp_path, "ENGINES=vllm", f"ARGS={options}")
    assert _after(build, "--tag") == ["ours/worker-vllm:7"]
    assert _after(build, "--build-arg") == [
        "BASE_IMAGE=mirror.example/cuda:13.0.2-devel-ubuntu24.04",
        "ENGINE=vllm",
        "MAX_JOBS=16",
        "TORCH_CUDA_ARCH_LIST=9.0",
    ]


def test_an_image_of_an_engine_may_be_named_as_well(tmp_path: Path) -> None:
    done, [build] = _run(tmp_path, "images/build", "worker-exllamav3")
    assert done.returncode == 0
    assert _after(build, "--tag") == ["roundhouse/worker-exllamav3:latest"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--engines", "exllama"), "no engine exllama; there are: exllamav3 vllm llama-cpp ct2 onnx litert-lm mcp"),
        (("--engines", " "), "--engines names no engine"),
        (("--engines",), "--engines needs a value"),
        (("worker-onnx",), "no image worker-onnx; there are: controller gateway worker llama-server worker-exllamav3"),
        (("--engines", "vllm", "gateway"), "--engines and names of images exclude each other"),
    ],
)
def test_what_cannot_be_built(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    done, builds = _run(tmp_path, "images/build", *arguments)
    assert (done.returncode, builds) == (2, [])
    assert f"images/build: {words}" in done.stderr


FOLDER = REPOSITORY / "images" / "worker-cuda"
DOCKERFILE = (FOLDER / "Dockerfile").read_text()
CHECK = FOLDER / "check_image.py"
ENGINES = ("exllamav3", "vllm")
UBUNTU_24_04 = {
    "python_version": "3.12",
    "python_full_version": "3.12.3",
    "sys_platform": "linux",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_system": "Linux",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
}
# As `nvcc --version` of CUDA 13.0.2 says it.
NVCC = """nvcc: NVIDIA (R) Cuda compiler driver
Copyright (c) 2005-2025 NVIDIA Corporation
Built on Wed_Aug_20_01:58:59_PM_PDT_2025
Cuda compilation tools, release 13.0, V13.0.88
Build cuda_13.0.r13.0/compiler.36424714_0
"""


def _base_of(engine: str) -> str:
    text = (REPOSITORY / "images" / "build").read_text()
    found = re.search(rf"^ *\[worker-{engine}\]=(\S+)$", text, flags=re.MULTILINE)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_base_has_the_cuda_that_the_locked_pytorch_is_made_for(engine: str) -> None:
    pins = {pin.name: pin.version for pin in read_lock((REPOSITORY / f"images/worker/{engine}.txt").read_text())}
    tag = re.fullmatch(r"nvidia/cuda:(\d+\.\d+)\.\d+-devel-ubuntu24\.04", _base_of(engine))
    assert tag is not None
    assert tag[1] == ".".join(pins["cuda-toolkit"].split(".")[:2])
    assert tag[1].startswith("13.")


@pytest.mark.parametrize("engine", ENGINES)
def test_the_locks_of_an_image_agree(engine: str) -> None:
    locks = [(REPOSITORY / lock).read_text() for lock in ENGINE_IMAGE_LOCKS[f"worker-{engine}"]]
    pins = merge_pins(pin for lock in locks for pin in read_lock(lock, UBUNTU_24_04))
    assert {engine, "torch", "uvicorn", "ninja"} <= pins.keys()
    assert {Path(lock).name for lock in ENGINE_IMAGE_LOCKS[f"worker-{engine}"]} == {"worker.txt", f"{engine}.txt"}


def test_the_locked_packages_are_what_was_looked_at() -> None:
    """The kernels' folder, the names of the modules and that no GPU is needed were tried with these."""
    versions = {"exllamav3": "1.6.5", "vllm": "0.33.0"}
    for engine, version in versions.items():
        pins = read_lock((REPOSITORY / f"images/worker/{engine}.txt").read_text())
        assert [pin.version for pin in pins if pin.name == engine] == [version]


def test_kernels_are_compiled_for_listed_gpus_with_a_bound_of_jobs_in_the_build_alone() -> None:
    build, final = DOCKERFILE.split("\nFROM base\n")
    # turboderp-org/exllamav3 builds its own wheels for these (.github/workflows/build.yml).
    assert 'ARG TORCH_CUDA_ARCH_LIST="8.0 8.6 8.9 9.0 10.0 12.0+PTX"\n' in build
    assert "ARG MAX_JOBS=4\n" in build
    assert "TORCH_EXTENSIONS_DIR=/opt/extensions" in build
    for name in ("TORCH_CUDA_ARCH_LIST", "MAX_JOBS", "TORCH_EXTENSIONS_DIR", "/opt/build"):
        assert name not in final, "it would bind what vLLM compiles for the GPU that is there"


def test_the_final_image_can_compile_what_engines_compile_as_they_start() -> None:
    base = DOCKERFILE.split("AS base\n")[1].split("\nFROM")[0]
    assert {"gcc", "g++", "libc6-dev", "python3", "python3-dev", "python3-venv"} <= {*base.split()}
    assert DOCKERFILE.count("FROM base") == 2, "the same Python at the same path in both stages"


def test_the_last_step_of_the_build_is_the_check_by_the_user_that_runs_engines() -> None:
    steps = [line for line in DOCKERFILE.replace("\\\n", " ").splitlines() if re.match(r"RUN|USER", line)]
    assert steps[-2] == "USER 10001:10001"
    assert "/opt/roundhouse/bin/python /opt/roundhouse/check_image.py $ENGINE" in steps[-1]


def _load_check() -> Any:
    spec = importlib.util.spec_from_file_location("check_image", CHECK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_image"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """As much of the image of ExLlamaV3 as the check looks at, made of fakes: `site` and `bin`."""
    site, programs = tmp_path / "site", tmp_path / "bin"
    for package in ("torch", "exllamav3", "exllamav3-1.6.5.dist-info"):
        (site / package).mkdir(parents=True)
    (site / "torch" / "__init__.py").write_text("from torch import version\n")
    (site / "torch" / "version.py").write_text("cuda = '13.0'\n")
    (site / "exllamav3" / "__init__.py").write_text("import torch\n")
    (site / "exllamav3-1.6.5.dist-info" / "METADATA").write_text("Name: exllamav3\nVersion: 1.6.5\n")
    (site / "exllamav3_ext.so").write_bytes(b"kernels" * 1000)
    programs.mkdir()
    _write_program(programs / "nvcc", f"cat <<'T'\n{NVCC}T\n")
    _write_program(programs / "gcc", 'while [ "$1" != -o ]; do shift; done; : >"$2"\n')
    return tmp_path


def _write_program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)


def _check(image: Path, engine: str = "exllamav3") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": f"{image / 'site'}:{REPOSITORY}", "PATH": f"{image / 'bin'}:/usr/bin:/bin"}
    return subprocess.run(
        [sys.executable, str(CHECK), engine, "--size-of", str(image / "site")],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_image_that_has_everything(image: Path) -> None:
    done = _check(image)
    assert (done.returncode, done.stderr) == (0, "")
    facts = json.loads(done.stdout)
    assert facts["engine"] == "exllamav3 1.6.5"
    assert facts["cuda"] == {"torch": "13.0", "nvcc": "13.0"}
    assert facts["imports"] == {"exllamav3": "imported", "worker.engines.exllamav3": "imported"}
    assert facts["kernels"] == str(image / "site" / "exllamav3_ext.so")
    assert facts["size_mb"].keys() == {str(image / "site")}


def test_a_module_that_lacks_nothing_but_the_driver_is_as_far_as_a_build_gets(image: Path) -> None:
    error = "libcuda.so.1: cannot open shared object file: No such file or directory"
    (image / "site" / "exllamav3" / "__init__.py").write_text(f"raise ImportError({error!r})\n")
    done = _check(image)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["imports"]["exllamav3"] == f"up to the driver: ImportError: {error}"


MODULE, NEEDS_GCC = "site/exllamav3/__init__.py", "import shutil\nassert shutil.which('gcc'), 'no gcc'"


@pytest.mark.parametrize(
    ("path", "content", "words"),
    [
        ("site/exllamav3_ext.so", None, "there is no compiled exllamav3_ext: it would be compiled at every first"),
        (MODULE, "import marisa_tree", "exllamav3 cannot be imported: ModuleNotFoundError: No mod"),
        (MODULE, NEEDS_GCC, "exllamav3 cannot be imported: AssertionError: no gcc"),
        ("site/exllamav3-1.6.5.dist-info", None, "exllamav3 is not installed"),
        ("site/torch/version.py", "cuda = None", "torch is built without CUDA"),
        ("site/torch/version.py", "cuda = '12.8'", "torch is made for CUDA 12.8, and nvcc is of 13.0"),
        ("bin/nvcc", "#!/bin/sh\nexit 1", "there is no nvcc that tells its version"),
        (
            "bin/gcc",
            # theroyallab/tabbyAPI#456
            "#!/bin/sh\necho '/tmp/cuda_utils.c:6:10: fatal error: Python.h: No such file or directory' >&2\nexit 1",
            "gcc cannot compile with Python's headers: /tmp/cuda_utils.c:6:10: fatal error: Python.h: No such file",
        ),
    ],
)
def test_what_an_image_may_lack(image: Path, path: str, content: str | None, words: str) -> None:
    file = image / path
    if file.is_dir():
        shutil.rmtree(file)
    elif content is None:
        file.unlink()
    else:
        file.write_text(content)
    done = _check(image)
    assert done.returncode == 1
    assert f"check_image: {words}" in done.stderr


def test_another_minor_version_of_cuda_does_as_well(image: Path) -> None:
    (image / "site" / "torch" / "version.py").write_text("cuda = '13.2'")
    done = _check(image)
    assert (done.returncode, json.loads(done.stdout)["cuda"]) == (0, {"torch": "13.2", "nvcc": "13.0"})


def test_sizes_are_of_all_files_below_once_each(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(b"x" * 5_000_000)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    os.link(tmp_path / "a" / "file", tmp_path / "again")
    assert _load_check().measure_mb(tmp_path) == 5
