"""What a new user does first, as the README says it: the commands that are typed, their times, and what was refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.ports import free_port
from tests.support.roundhouse_stack import REPOSITORY, SENTENCE
from tests.support.wait import until
from worker.clockwork import make_model

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


START_DEADLINE_S = 600.0
"""Of `make up` with its installation, on a busy machine."""
LAN_ADDRESS = "127.0.0.2"
"""Stands for the machine's address in its network: not the one that is served without being asked for, and loopback."""
_CURL_REFUSED = 7
"""Exit code of curl."""
NOT_YET = ("controller_unavailable", "unknown_model", "model_loading", "model_not_loaded")
"""Codes of answers that say that a saved file is not in force yet."""
_OPTIONS = "--models models,../downloads"
_COMPLAINTS = (" WARNING ", " ERROR ", "roundhouse: error", "Traceback")


@dataclass
class Step:
    """One thing that a new user wants. `refusals`: whatever said no on the way, in words of a program of ours."""

    title: str
    commands: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    seconds: float = 0.0


class FirstHour:
    """A clone of HEAD in an empty folder, beside `downloads/mine.gguf`. `prepare` None: `make up` installs into the
    clone; else it is called with the clone in place of that."""

    def __init__(self, folder: Path, prepare: Callable[[Path], None] | None = None) -> None:
        self.clone = folder / "roundhouse"
        self.steps: list[Step] = []
        self.log = folder / "up.log"
        self._prepare = prepare
        self._port = free_port()
        self._up: subprocess.Popen[bytes] | None = None
        self._service: UserSystemd | None = None
        self._read = 0
        (folder / "downloads").mkdir()
        make_model(folder / "downloads" / "mine.gguf")

    async def walk(self) -> None:
        """All steps, in the order of the README. Raises AssertionError where one leads nowhere, CalledProcessError
        where a command fails."""
        try:
            await self._first_answer()
            await self._own_model()
            await self._model_where_it_lies()
            secret = await self._lan_key()
            await self._run_as_service(secret)
        finally:
            self._end_up()

    # The steps.

    async def _first_answer(self) -> None:
        with self._step("From nothing to the first answer"):
            self._run(f"git clone --quiet {REPOSITORY} roundhouse", "git clone ADDRESS roundhouse", self.clone.parent)
            if self._prepare is not None:
                self._prepare(self.clone)
            await self._start_up(f"--port {self._port}", "Try: curl")
            self._ask("clockwork")

    async def _own_model(self) -> None:
        with self._step("An own GGUF file from outside the project"):
            self._run("cp ../downloads/mine.gguf models/")
            self._run("printf 'models:\\n  mine:\\n    model_path: mine.gguf\\n' > desired-state/local.yaml")
            await self._asked_until_in_force("mine")

    async def _model_where_it_lies(self) -> None:
        with self._step("The same file, left where it lies"):
            self._run("rm models/mine.gguf")
            self._end_up()
            shown = f"(Ctrl-C) make up ARGS='{_OPTIONS}'"
            await self._start_up(f"{_OPTIONS} --port {self._port}", "gateway: listening on", shown)
            await self._asked_until_in_force("mine")

    async def _lan_key(self) -> str:
        with self._step("A key, and an address of the network"):
            output = self._run(".venv/bin/roundhouse key new laptop > desired-state/key-laptop.yaml").stderr
            secret = next(word for word in output.split() if word.startswith("rh-"))
            self._end_up()
            options = f"{_OPTIONS} --host {LAN_ADDRESS} --port {self._port}"
            await self._start_up(options, "gateway: listening on", f"(Ctrl-C) make up ARGS='{_OPTIONS} --host 0.0.0.0'")
            await self._asked_until_in_force("mine", LAN_ADDRESS, secret)
        status, answer = self._post("mine", LAN_ADDRESS, "")
        assert (status, answer["error"]["code"]) == (401, "invalid_api_key"), "the key opens what is closed without it"
        return secret

    async def _run_as_service(self, secret: str) -> None:
        self._end_up()
        async with UserSystemd(self.clone.parent / "systemd") as self._service:
            with self._step("A service of systemd"):
                options = f"{_OPTIONS} --host {LAN_ADDRESS} --port {self._port}"
                shown = f".venv/bin/roundhouse service install --now {_OPTIONS} --host 0.0.0.0"
                self._run(f".venv/bin/roundhouse service install --now {options}", shown)
                await self._asked_until_in_force("mine", LAN_ADDRESS, secret)
                self._run("systemctl --user restart roundhouse")
                await self._asked_until_in_force("mine", LAN_ADDRESS, secret)
                self._run(".venv/bin/roundhouse down")
                self._run(".venv/bin/roundhouse service remove")
        self._service = None

    # What is typed.

    @contextmanager
    def _step(self, title: str) -> Iterator[None]:
        self.steps.append(Step(title))
        began = time.monotonic()
        yield
        self.steps[-1].seconds = time.monotonic() - began
        self._read_log()

    def _read_log(self) -> str:
        """What `up` has said since it was last read; complaints become refusals of the step."""
        text = self.log.read_text()[self._read :]
        self._read += len(text)
        complaints = [line for line in text.splitlines() if any(sign in line for sign in _COMPLAINTS)]
        self.steps[-1].refusals += complaints
        return text

    def _note(self, command: str) -> None:
        self.steps[-1].commands.append(command)

    def _run(
        self, command: str, shown: str | None = None, folder: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run it in the clone, or in `folder`. `shown` is what the page has in its place; None: the command itself."""
        self._note(shown or command)
        typed = ["bash", "-c", command]
        return subprocess.run(
            typed if self._service is None else self._service.wrap_command(typed),
            cwd=folder or self.clone,
            env=_user_environment(),
            capture_output=True,
            text=True,
            check=True,
        )

    async def _start_up(self, options: str, ready: str, shown: str = "make up") -> None:
        """Type `make up` into a terminal of its own, and wait for the words `ready` in what it says. `shown` is what
        the page has in place of the command."""
        self._note(shown)
        self._up = self._open_up(options)
        lines: list[str] = []

        def announced() -> bool:
            assert self._up is not None
            assert self._up.poll() is None, self.log.read_text()
            lines.append(self._read_log())
            return ready in "".join(lines)

        await until(f"the words {ready!r}", announced, START_DEADLINE_S)

    def _open_up(self, options: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                ["make", "up", f"ARGS={options}"],
                cwd=self.clone,
                env=_user_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _end_up(self) -> None:
        """Ctrl-C. What it says while it ends is no refusal."""
        if self._up is None:
            return
        process, self._up = self._up, None
        if process.poll() is None:
            self._read_log()
            os.killpg(process.pid, signal.SIGINT)
            process.wait(60)
        self._read = len(self.log.read_text())

    # What is asked.

    def _ask(self, model: str) -> None:
        self._note(_curl(model, "127.0.0.1:8080", with_key=False))
        status, answer = self._post(model, "127.0.0.1", "")
        assert status == 200, answer
        _check_sentence(answer)

    async def _asked_until_in_force(self, model: str, host: str = "127.0.0.1", secret: str = "") -> None:
        shown = "ADDRESS:8080" if secret else "127.0.0.1:8080"
        self._note(_curl(model, shown, with_key=bool(secret)))

        def answered() -> Mapping[str, Any] | None:
            status, answer = self._post(model, host, secret)
            if status == 200:
                return answer
            error = answer["error"]
            if error["code"] not in NOT_YET and error["message"] not in self.steps[-1].refusals:
                self.steps[-1].refusals.append(error["message"])
            return None

        _check_sentence(await until(f"an answer of {model}", answered))

    def _post(self, model: str, host: str, secret: str) -> tuple[int, Mapping[str, Any]]:
        """The status and the JSON of an answer, by curl; 0 and an error where nobody accepts the connection."""
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello"}]})
        command = ["curl", "-s", "-w", "\n%{http_code}", f"http://{host}:{self._port}/v1/chat/completions", "-d", body]
        command += ["-H", "Content-Type: application/json"]
        command += ["-H", f"Authorization: Bearer {secret}"] if secret else []
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == _CURL_REFUSED and self._service is not None:  # systemd says less than `up`
            return 0, {"error": {"code": NOT_YET[0]}}
        done.check_returncode()
        answer, _, status = done.stdout.rpartition("\n")
        return int(status), json.loads(answer)


def lend_environment(python: Path) -> Callable[[Path], None]:
    """What stands for the installation in a test: a `.venv` in the clone whose `roundhouse` is the clone's code in the
    environment of `python`."""

    def prepare(clone: Path) -> None:
        folder = clone / ".venv" / "bin"
        folder.mkdir(parents=True)
        for name, words in (
            ("python", '"$@"'),
            ("roundhouse", '-c "from cli.main import main; main()" "$@"'),
        ):
            (folder / name).write_text(f'#!/bin/sh\nPYTHONPATH="{clone}" exec "{python}" {words}\n')
            (folder / name).chmod(0o755)
        for stamp in (".made", ".installed"):
            (clone / ".venv" / stamp).touch()

    return prepare


def _curl(model: str, address: str, *, with_key: bool) -> str:
    header = " -H 'Authorization: Bearer rh-...'" if with_key else ""
    body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    return f"curl -s http://{address}/v1/chat/completions -H 'Content-Type: application/json'{header} -d '{body}'"


def _check_sentence(answer: Mapping[str, Any]) -> None:
    assert answer["choices"][0]["message"]["content"] == SENTENCE, answer


def _user_environment() -> dict[str, str]:
    """This process's own, less what tells of Roundhouse, make and an environment of Python."""
    prefixes = ("ROUNDHOUSE_", "MAKE", "MFLAGS", "PYTHON", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
