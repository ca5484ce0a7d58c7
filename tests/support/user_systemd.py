"""A real `systemd --user` in namespaces of its own: nothing of the machine's own systemd, if it has one, is seen."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.support.wait import until

_SYSTEMD = Path("/lib/systemd/systemd")
_TARGETS = ("basic", "default", "exit", "paths", "shutdown", "sockets", "timers")
_BOOT = """
set -eu
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system
mkdir -p -m 700 "$XDG_RUNTIME_DIR"
{systemd} --user --unit=default.target &
exec sleep infinity
"""


def find_missing() -> str | None:
    """What is missing here for a systemd of a user; None: nothing."""
    if os.geteuid() != 0:
        return "namespaces of a systemd take root"
    tools = [tool for tool in ("nsenter", "systemctl", "unshare") if shutil.which(tool) is None]
    if tools or not _SYSTEMD.exists():
        return f"there is no {', '.join(tools) or _SYSTEMD}; Debian's package systemd has it"
    probe = subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False)
    return None if probe.returncode == 0 else "this machine gives no namespaces"


class UserSystemd:
    """The manager of one user's units, with a home in `folder`. Use it with `async with`, which ends its processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = {
            "HOME": str(folder / "home"),
            "XDG_RUNTIME_DIR": f"/run/user/{os.getuid()}",
            # No unit of the machine: most of them would change it.
            "SYSTEMD_UNIT_PATH": f"{folder / 'home'}/.config/systemd/user:{folder / 'units'}",
        }
        self._process: subprocess.Popen[bytes] | None = None

    async def __aenter__(self) -> UserSystemd:
        (self._folder / "home").mkdir(parents=True)
        (self._folder / "units").mkdir()
        for target in _TARGETS:
            text = f"[Unit]\nDescription={target}\nDefaultDependencies=no\n"
            (self._folder / "units" / f"{target}.target").write_text(text)
        self._process = self._boot()
        await until("systemd answers", self._answers)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def wrap_command(self, command: list[str]) -> list[str]:
        """The command line that runs `command` as a login of that user would."""
        assert self._process is not None
        [first] = self._list_children(self._process.pid)
        variables = [f"{name}={value}" for name, value in self._environment.items()]
        return ["nsenter", "--target", first, "--mount", "--pid", "--wd=.", "env", *variables, *command]

    def _boot(self) -> subprocess.Popen[bytes]:
        command = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "bash", "-c"]
        with (self._folder / "systemd.log").open("wb") as log:
            return subprocess.Popen(
                [*command, _BOOT.format(systemd=_SYSTEMD)],
                env=os.environ | self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "systemd.log").read_text()
        if not self._list_children(self._process.pid):
            return False
        command = self.wrap_command(["systemctl", "--user", "is-system-running"])
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    @staticmethod
    def _list_children(pid: int) -> list[str]:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
