"""What the worker's image takes from Debian: the Dockerfile's own command, with stubs for what changes a system."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

DOCKERFILE = Path(__file__).resolve().parents[3] / "images" / "worker" / "Dockerfile"
INSTALL = "apt-get install -y --no-install-recommends "


def _install_command() -> str:
    """The RUN of the last stage that installs packages."""
    last_stage = re.split(r"^FROM .*$", DOCKERFILE.read_text(), flags=re.MULTILINE)[-1]
    commands = re.findall(r"^RUN ((?:.*\\\n)*.*)$", last_stage, re.MULTILINE)
    [command] = [str(each) for each in commands if "apt-get" in each]
    return command


def _installed(tmp_path: Path, engines: str, libraries: tuple[str, ...]) -> list[str]:
    """The packages that are installed for these engines on a base that has these libraries."""
    stubs, log = tmp_path / "stubs", tmp_path / "log"
    stubs.mkdir()
    for name in ("apt-get", "rm"):
        (stubs / name).write_text(f'#!/bin/sh\necho {name} "$@" >>"{log}"\n')
    listing = "".join(f"echo '\\t{name} (libc6,x86-64) => /usr/lib/{name}'\n" for name in libraries)
    (stubs / "ldconfig").write_text(f"#!/bin/sh\n{listing}")
    for each in stubs.iterdir():
        each.chmod(0o755)
    # Nothing else is found: whatever a later version of the command does, it does nothing to this host.
    (stubs / "grep").symlink_to(shutil.which("grep") or "/bin/grep")
    environment = {"PATH": str(stubs), "ENGINES": engines}
    subprocess.run(["/bin/sh", "-c", _install_command()], env=environment, check=True, cwd=tmp_path)
    lines = log.read_text().splitlines() if log.exists() else []
    if not lines:
        return []
    update, install, clean = lines
    assert (update, clean.split("/lists/")[0]) == ("apt-get update", "rm -rf /var/lib/apt")
    assert install.startswith(INSTALL)
    return install.removeprefix(INSTALL).split()


@pytest.mark.parametrize(
    ("engines", "libraries", "packages"),
    [
        ("llama-cpp ct2 onnx litert-lm", (), ["libgomp1", "libvulkan1", "libxext6"]),
        ("litert-lm", ("libgomp.so.1", "libXext.so.6"), ["libvulkan1"]),
        ("llama-cpp", (), ["libgomp1"]),
        ("vllm", ("libgomp.so.1",), []),
        ("litert-lm", ("libgomp.so.1", "libvulkan.so.1", "libXext.so.6"), []),
    ],
)
def test_vulkan_s_loader_is_there_where_litert_lm_is(
    tmp_path: Path, engines: str, libraries: tuple[str, ...], packages: list[str]
) -> None:
    """The loader, and what NVIDIA's part of it is linked to and the driver does not bring: "libXext.so.6: cannot open
    shared object file" (NVIDIA/nvidia-container-toolkit#16). No other Vulkan driver: LiteRT-LM would take a software
    one and fall over it (leehack/llamadart#572).
    """
    assert _installed(tmp_path, engines, libraries) == packages


def test_both_stages_speak_of_the_same_engines() -> None:
    text = DOCKERFILE.read_text()
    assert text.index('ARG ENGINES="') < text.index("FROM "), "a default before the first stage is that of all stages"
    assert len(re.findall(r"^ARG ENGINES$", text, re.MULTILINE)) == 2
