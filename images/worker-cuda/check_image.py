"""Checks an image of ExLlamaV3 or vLLM as far as that goes without a GPU: the last step of its build.

    docker run --rm --network none --entrypoint python IMAGE /opt/roundhouse/check_image.py exllamav3

stdout gets one JSON object of what was found, stderr a line for each thing that is missing; then the exit code is 1.
That kernels work is not seen here: none runs.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

TIME_LIMIT_S: Final = 600.0
"""For each program that is run."""
DRIVER: Final = "libcuda.so"
"""The driver's library: it comes with the GPU, never with an image."""
SIZES_OF: Final = (Path("/opt/roundhouse"), Path("/usr"))


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What an engine's image has to hold."""

    modules: tuple[str, ...]
    """They are imported, each in a process of its own."""
    kernels: str | None = None
    """A module that is compiled in the build; None: the engine's wheel holds its kernels."""


ENGINES: Final = {
    "exllamav3": EngineParts(("exllamav3", "worker.engines.exllamav3"), "exllamav3_ext"),
    "vllm": EngineParts(("vllm", "vllm._C_stable_libtorch", "worker.launchers.vllm")),
}


class CheckError(Exception):
    """Something is missing. The message says what, in one line."""


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="check_image.py", description="Check an image without a GPU.")
    parser.add_argument("engine", choices=sorted(ENGINES))
    parser.add_argument("--size-of", action="append", type=Path, metavar="FOLDER", help="default: those of the image")
    arguments = parser.parse_args()
    parts = ENGINES[arguments.engine]
    checks: dict[str, Callable[[], Any]] = {
        "engine": lambda: find_version(arguments.engine),
        "cuda": find_cuda_versions,
        "compiler": compile_extension,
        "kernels": lambda: find_kernels(parts.kernels),
        "imports": lambda: {name: import_module(name) for name in parts.modules},
        "size_mb": lambda: {str(folder): measure_mb(folder) for folder in arguments.size_of or SIZES_OF},
    }
    facts: dict[str, Any] = {}
    for name, check in checks.items():
        try:
            facts[name] = check()
        except CheckError as error:
            facts[name] = None
            sys.stderr.write(f"check_image: {error}\n")
    sys.stdout.write(json.dumps(facts, indent=2) + "\n")
    return int(None in facts.values())


def find_version(engine: str) -> str:
    """Name and version of the installed engine. Raises CheckError."""
    try:
        return f"{engine} {importlib.metadata.version(engine)}"
    except importlib.metadata.PackageNotFoundError:
        raise CheckError(f"{engine} is not installed") from None


def find_cuda_versions() -> dict[str, str]:
    """CUDA's version for which PyTorch is made, and nvcc's. Raises CheckError: they do not go together."""
    made = _run_python("import torch; print(torch.version.cuda)", dict(os.environ))
    if made.returncode != 0:
        raise CheckError(f"torch cannot be imported: {_last_line(made.stderr)}")
    if (torch_cuda := made.stdout.strip()) == "None":
        raise CheckError("torch is built without CUDA")
    nvcc = shutil.which("nvcc")
    told = _run(nvcc, "--version").stdout if nvcc is not None else ""
    release = re.search(r"release (\d+\.\d+)", told)
    if release is None:
        raise CheckError("there is no nvcc that tells its version: the base is no CUDA devel image")
    # PyTorch compiles nothing with another major version, and warns of another minor one.
    if release[1].split(".")[0] != torch_cuda.split(".")[0]:
        raise CheckError(f"torch is made for CUDA {torch_cuda}, and nvcc is of {release[1]}")
    return {"torch": torch_cuda, "nvcc": release[1]}


def compile_extension() -> str:
    """The C compiler that makes a module of Python's, as Triton does as it starts. Raises CheckError."""
    gcc = shutil.which("gcc")
    if gcc is None:
        raise CheckError("there is no gcc")
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "empty.c"), Path(folder, "empty.so")
        source.write_text("#include <Python.h>\n")
        made = _run(gcc, "-shared", "-fPIC", f"-I{sysconfig.get_path('include')}", str(source), "-o", str(library))
        if made.returncode != 0 or not library.exists():
            errors = [line for line in made.stderr.splitlines() if "error" in line] or ["it says nothing"]
            raise CheckError(f"gcc cannot compile with Python's headers: {errors[0]}")
    return gcc


def find_kernels(module: str | None) -> str | None:
    """The library of that module. Raises CheckError: it would be compiled when the engine starts."""
    if module is None:
        return "in the engine's wheel"
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None or not spec.origin.endswith(".so"):
        raise CheckError(f"there is no compiled {module}: it would be compiled at every first start")
    return spec.origin


def import_module(name: str) -> str:
    """How far its import goes with neither a GPU nor a compiler. Raises CheckError: not even up to the driver."""
    done = _run_python(f"import {name}", {**os.environ, "PATH": "", "CUDA_VISIBLE_DEVICES": ""})
    if done.returncode == 0:
        return "imported"
    reason = _last_line(done.stderr)
    if DRIVER in reason:
        return f"up to the driver: {reason}"
    raise CheckError(f"{name} cannot be imported: {reason}")


def measure_mb(folder: Path) -> int:
    """Millions of bytes of all files below it, each counted once."""
    sizes: dict[tuple[int, int], int] = {}
    for path, _, names in os.walk(folder):
        for name in names:
            status = os.lstat(os.path.join(path, name))  # noqa: PTH118 - some hundred thousand files
            sizes[status.st_dev, status.st_ino] = status.st_size
    return round(sum(sizes.values()) / 1_000_000)


def _run_python(program: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return _run(sys.executable, "-c", program, env=env)


def _run(*command: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=TIME_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", f"{error}\n")


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it says nothing"])[-1]


if __name__ == "__main__":
    sys.exit(main())
