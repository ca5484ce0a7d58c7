"""Checks whether this host has the program and the Python package that an engine's command line needs."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

_PACKAGES: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "llama_server": ("xllamacpp", "embedded"),
        "llama_cpp": ("llama_cpp", "llama-cpp"),
        "vllm": ("vllm", "vllm"),
        "ct2": ("ctranslate2", "ct2"),
        "exllamav3": ("exllamav3", "exllamav3"),
        "onnx": ("onnxruntime", "onnx"),
        "litert_lm": ("litert_lm", "litert-lm"),
        "mcp": ("mcp", "mcp"),
    }
)
"""Worker engine to the Python package that it imports, and the extra of `roundhouse` that installs the package."""
_HINTS: Final[Mapping[str, str]] = MappingProxyType(
    {"vllm": ": install vLLM, or name its program as vllm_serve_binary, or take the backend vllm"}
)
"""Program to a hint for when it is missing."""


def check_program(argv: Sequence[str]) -> str | None:
    """Return what an engine's command line lacks on this host, as a sentence for the operator; None if nothing is
    missing. Imports and starts nothing. The program must be a name on PATH or an absolute path. Of an MCP server, the
    server's own program is checked as well.

    Packages are checked only for engines that run with this Python interpreter. With another one, the engine's last log
    line says what is missing.
    """
    program = argv[0]
    if problem := _check_executable(program):
        return problem
    worker_engine = argv[3] if tuple(argv[1:3]) == ("-m", "worker") else None
    if program == sys.executable and worker_engine is not None and worker_engine in _PACKAGES:
        package, extra = _PACKAGES[worker_engine]
        if importlib.util.find_spec(package) is None:
            return f"Python package {package} is not installed: pip install 'roundhouse[{extra}]'"
    if worker_engine == "mcp":
        # What follows the second `--` is the server's own command.
        own_end = argv.index("--", argv.index("--") + 1)
        return _check_executable(argv[own_end + 1])
    return None


def _check_executable(program: str) -> str | None:
    if "/" not in program:
        hint = _HINTS.get(program, "")
        return None if shutil.which(program) else f"program {program} is not on PATH{hint}"
    path = Path(program)
    if not path.is_absolute():
        return f"program {program} is a relative path: give an absolute one, or a name on PATH"
    if not path.exists():
        return f"program {program} does not exist"
    if not path.is_file() or not os.access(path, os.X_OK):
        return f"program {program} is not an executable file"
    return None
