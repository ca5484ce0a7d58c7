"""`roundhouse service install|remove` with a systemctl that writes down its command lines; and the units that they
write, as text and as systemd's own checker reads them."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from cli.output import ExitCode
from cli.up import service as install
from cli.up.service import ServiceUnit, UnitTextError, find_state, render_unit
from tests.support.cli import Output, Roundhouse
from tests.support.doc_tables import DOCS
from tests.support.require import require

LOGIN = pwd.getpwuid(os.getuid()).pw_name
SYSTEMCTL = """#!/bin/sh
echo "$*" >> "$CALLS"
case "$*" in
  *show*) cat "$ACTIVE" ;;
  *) [ ! -e "$REFUSAL" ] || { cat "$REFUSAL" >&2; exit 1; } ;;
esac
"""


class Machine:
    """A machine with systemd, as far as `roundhouse service` sees one."""

    def __init__(self, folder: Path, roundhouse: Roundhouse) -> None:
        self.folder = folder
        self.roundhouse = roundhouse
        self.unit = folder / "config" / "systemd" / "user" / "roundhouse.service"
        self.calls_file = folder / "calls"
        self.refusal = folder / "refusal"
        self.set_active("inactive")

    def install(self, *arguments: str) -> Output:
        return self.roundhouse("service", "install", *arguments)

    def remove(self, *arguments: str) -> Output:
        return self.roundhouse("service", "remove", *arguments)

    def set_active(self, state: str) -> None:
        (self.folder / "active").write_text(f"{state}\n")

    def calls(self) -> list[str]:
        """What was asked that changes something, since the last look."""
        lines = self.calls_file.read_text().splitlines() if self.calls_file.exists() else []
        self.calls_file.unlink(missing_ok=True)
        return [line.replace("--no-ask-password ", "") for line in lines if " show " not in line]


@pytest.fixture
def machine(folder: Path, roundhouse: Roundhouse, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(folder, roundhouse)
    for name in ("bin", "booted", "linger", "desired-state"):
        (folder / name).mkdir()
    (folder / "bin" / "systemctl").write_text(SYSTEMCTL)
    (folder / "bin" / "systemctl").chmod(0o755)
    for name in [name for name in os.environ if name.startswith("ROUNDHOUSE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", f"{folder}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    monkeypatch.setenv("CALLS", str(made.calls_file))
    monkeypatch.setenv("ACTIVE", str(folder / "active"))
    monkeypatch.setenv("REFUSAL", str(made.refusal))
    monkeypatch.setattr(install, "BOOTED_FOLDER", folder / "booted")
    monkeypatch.setattr(install, "SYSTEM_UNITS", folder / "system-units")
    monkeypatch.setattr(install, "LINGER_FOLDER", folder / "linger")
    monkeypatch.chdir(folder)
    return made


def test_it_writes_the_unit_starts_nothing_and_says_what_to_type(machine: Machine) -> None:
    assert machine.install("--port", "9000") == Output(
        ExitCode.DONE,
        f"wrote {machine.unit}\n"
        "next: systemctl --user enable --now roundhouse.service\n"
        f"next: loginctl enable-linger {LOGIN}    # else it runs only during logins of {LOGIN}\n",
    )
    assert machine.calls() == ["--user daemon-reload"]
    text = machine.unit.read_text()
    assert f'ExecStart="{install.PROGRAM}" service run\nWorkingDirectory={machine.folder}\n' in text
    assert 'Environment="ROUNDHOUSE_PORT=9000"\n' in text
    assert f'Environment="ROUNDHOUSE_STATE={machine.folder}/state"\n' in text
    assert f'Environment="PATH={os.environ["PATH"]}"\n' in text
    assert f"EnvironmentFile=-{machine.folder}/config/roundhouse/roundhouse.env\n" in text
    assert (machine.folder / "state").stat().st_mode & 0o777 == 0o700
    assert machine.unit.stat().st_mode & 0o777 == 0o644


def test_twice_is_as_once(machine: Machine) -> None:
    (machine.folder / "linger" / LOGIN).touch()
    machine.install()
    written = machine.unit.stat().st_mtime_ns
    out = f"{machine.unit} is as it should be\nnext: systemctl --user enable --now roundhouse.service\n"
    assert machine.install() == Output(ExitCode.DONE, out)
    assert machine.unit.stat().st_mtime_ns == written


def test_with_now_it_is_enabled_and_what_runs_takes_up_a_change(machine: Machine) -> None:
    (machine.folder / "linger" / LOGIN).touch()
    assert machine.install("--now") == Output(
        ExitCode.DONE,
        f"wrote {machine.unit}\nenabled and started roundhouse.service\n"
        "next: journalctl --user --unit roundhouse.service --follow    # what it says\n",
    )
    assert machine.calls() == ["--user daemon-reload", "--user enable --now roundhouse.service"]
    machine.set_active("active")
    machine.install("--now", "--port", "9001")
    assert machine.calls()[-1] == "--user restart roundhouse.service"
    assert "next: systemctl --user restart roundhouse.service\n" in machine.install("--port", "9002").out
    assert machine.calls() == ["--user daemon-reload"], "nobody said to restart it"


def test_remove_takes_away_what_install_wrote(machine: Machine) -> None:
    machine.install()
    machine.calls()
    machine.set_active("active")
    line = "roundhouse: roundhouse.service runs; `--now` stops it before it is removed\n"
    assert machine.remove() == Output(ExitCode.FAILED, err=line)
    assert machine.unit.exists()
    assert machine.remove("--now") == Output(
        ExitCode.DONE,
        f"removed {machine.unit}\n"
        f"next: roundhouse down --state {machine.folder}/state --runtime process    # ends engines that still run\n",
    )
    assert machine.calls() == ["--user disable --now roundhouse.service", "--user daemon-reload"]
    assert not machine.unit.exists()
    assert (machine.folder / "state").is_dir()
    assert machine.remove() == Output(ExitCode.DONE, f"nothing to remove: there is no {machine.unit}\n")
    assert machine.calls() == []


def test_install_says_what_it_did_as_json(machine: Machine) -> None:
    shown = machine.install("--json").json
    assert (shown["unit"], shown["done"], shown["notes"]) == (str(machine.unit), [f"wrote {machine.unit}"], [])
    assert shown["next"][0] == "systemctl --user enable --now roundhouse.service"


def test_what_is_set_in_this_shell_alone_is_named(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUNDHOUSE_TLS_CERT", "/etc/cert.pem")
    monkeypatch.setenv("ROUNDHOUSE_HOST", "0.0.0.0")
    monkeypatch.setenv("ROUNDHOUSE_KEY", "rh-secret")
    code, _, err = machine.install()
    assert (code, err) == (
        ExitCode.DONE,
        "roundhouse: set here and not in the unit: ROUNDHOUSE_TLS_CERT; "
        f"{machine.folder}/config/roundhouse/roundhouse.env may set them\n",
    )
    assert 'Environment="ROUNDHOUSE_HOST=0.0.0.0"\n' in machine.unit.read_text()
    assert "secret" not in machine.unit.read_text()


def test_without_systemd_it_is_refused_in_a_sentence(machine: Machine) -> None:
    (machine.folder / "booted").rmdir()
    for refused in (machine.install(), machine.remove()):
        assert refused.code == ExitCode.FAILED
        assert refused.err.startswith("roundhouse: systemd does not run this machine (")
        assert "`roundhouse service run`" in refused.err
        assert not machine.unit.exists()


def test_a_unit_of_somebody_else_is_left_alone(machine: Machine) -> None:
    machine.unit.parent.mkdir(parents=True)
    machine.unit.write_text("[Service]\nExecStart=/bin/true\n")
    for refused in (machine.install(), machine.remove()):
        assert refused.code == ExitCode.FAILED
        assert "was not written by `roundhouse service install` and stays" in refused.err
    assert machine.unit.read_text() == "[Service]\nExecStart=/bin/true\n"


def test_another_installation_takes_another_name(machine: Machine) -> None:
    machine.install()
    refused = machine.install("--state", "other")
    assert refused.code == ExitCode.FAILED
    assert f"serves another installation, with state folder {machine.folder}/state" in refused.err
    assert machine.install("--state", "other", "--name", "second").code == ExitCode.DONE
    assert machine.unit.with_name("second.service").exists()


def test_a_manager_that_does_not_answer_is_one_line(machine: Machine) -> None:
    machine.refusal.write_text("Failed to connect to bus: No medium found\nand more\n")
    line = (
        "roundhouse: `systemctl --user daemon-reload`: Failed to connect to bus: No medium found; "
        "a user's systemd is reached from a login of that user (not by su or sudo)\n"
    )
    assert machine.install() == Output(ExitCode.FAILED, err=line)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--user", "alice"], "--user goes with --system"),
        (["--name", "a b"], "--name a b: letters, digits"),
        (["--name", "../x"], "--name ../x: letters, digits"),
        (["--desired", "none"], "there is no folder"),
        (["--desired", 'de"sired'], "cannot stand in a unit of systemd"),
        (["--system"], "--system needs --user NAME"),
        (["--system", "--user", "nobody-of-that-name"], "there is no user nobody-of-that-name; `adduser --system"),
        (["--system", "--user", "root"], "--user root: engines would be root"),
    ],
)
def test_what_cannot_be_is_one_line_and_nothing_is_written(
    machine: Machine, arguments: list[str], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "--system" in arguments:
        monkeypatch.setattr(os, "geteuid", lambda: 0)
    code, out, err = machine.install(*arguments)
    assert code != ExitCode.DONE
    assert (out, err.count("\n")) == ("", 1)
    assert line in err
    assert list(machine.folder.rglob("*.service")) == []
    assert machine.calls() == []


# For the machine.


def test_the_machines_service_takes_root(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for refused in (machine.install("--system", "--user", "nobody"), machine.remove("--system")):
        assert refused.code == ExitCode.FAILED
        assert "takes root" in refused.err
    assert machine.calls() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")
def test_the_machines_service_is_written_with_a_state_folder_of_its_users(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "PROGRAM", Path("/bin/true"))
    unit = machine.folder / "system-units" / "roundhouse.service"
    code, out, _ = machine.install("--system", "--user", "nobody")
    assert (code, out) == (ExitCode.DONE, f"wrote {unit}\nnext: systemctl enable --now roundhouse.service\n")
    assert machine.calls() == ["daemon-reload"]
    assert "User=nobody\n" in unit.read_text()
    assert (machine.folder / "state").owner() == "nobody"
    os.chown(machine.folder / "state", 0, 0)
    refused = machine.install("--system", "--user", "nobody")
    assert refused.code == ExitCode.FAILED
    assert f"nobody cannot write {machine.folder}/state: chown -R nobody: " in refused.err


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")
def test_a_program_that_the_user_cannot_run_is_said_before_anything_is_written(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = machine.folder / "home" / "roundhouse"
    program.parent.mkdir(mode=0o700)
    program.symlink_to("/bin/true")
    monkeypatch.setattr(install, "PROGRAM", program)
    refused = machine.install("--system", "--user", "nobody")
    assert refused.code == ExitCode.FAILED
    assert "nobody cannot run" in refused.err
    assert not (machine.folder / "system-units").exists()


USER_UNIT = ServiceUnit(
    name="roundhouse",
    user=None,
    program=Path("/bin/true"),
    folder=Path("/srv/my models"),
    state=Path("/srv/my models/state"),
    environment={"ROUNDHOUSE_PORT": "8080", "ROUNDHOUSE_MODELS": "models 100%", "PATH": "/usr/bin:/opt/$x/bin"},
    environment_file=Path("/home/alice/.config/roundhouse/roundhouse.env"),
    read_only=(Path("/srv/my models/desired-state"), Path("/opt/rh")),
    stop_timeout_s=150,
)
SYSTEM_UNIT = replace(USER_UNIT, user="daemon")
UNITS = {"user": USER_UNIT, "system": SYSTEM_UNIT}


def settings_of(text: str) -> list[str]:
    """The lines that say something."""
    return [line for line in text.splitlines() if line and not line.startswith(("#", "["))]


@pytest.mark.parametrize("kind", UNITS)
def test_systemd_finds_nothing_wrong_with_a_unit(kind: str, tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    require("systemd", program is not None, "there is no systemd-analyze; Debian's package systemd has it")
    path = tmp_path / "roundhouse.service"
    path.write_text(render_unit(UNITS[kind]))
    manager = "--user" if kind == "user" else "--system"
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}

    def verify() -> str:
        done = subprocess.run(
            [str(program), manager, "verify", path], capture_output=True, text=True, env=env, check=False
        )
        return done.stdout + done.stderr

    assert verify() == ""
    path.write_text(path.read_text().replace("OOMPolicy=continue", "OOMPolicy=go-on"))
    assert "go-on" in verify(), "it looks at what the lines say"


@pytest.mark.parametrize("kind", UNITS)
def test_every_line_of_a_unit_is_justified_in_the_docs(kind: str) -> None:
    text = (DOCS / "operations.md").read_text()
    names = {line.partition("=")[0] for line in settings_of(render_unit(UNITS[kind]))}
    assert [name for name in sorted(names) if f"`{name}" not in text] == []


def test_engines_survive_whatever_ends_the_service() -> None:
    for unit in UNITS.values():
        lines = settings_of(render_unit(unit))
        # Only the main process is ended; `service run` ends what it has started, engines not.
        assert "KillMode=process" in lines
        # The kernel's OOM killer takes one engine, and systemd would end all the others for it.
        assert "OOMPolicy=continue" in lines
        # It is emptied when the service ends, under the engines that go on.
        assert not any(line.startswith("PrivateTmp") for line in lines)
        # Engines need /dev/nvidia*, and ProtectClock takes all devices away up to systemd 253.
        assert not any(
            line.startswith(("PrivateDevices", "ProtectClock", "DeviceAllow", "DevicePolicy")) for line in lines
        )
        # `down` ends it with 0, after which systemd does not start it again; a wrong setting it need not try again.
        assert {"Restart=on-failure", "RestartPreventExitStatus=64"} <= set(lines)


def test_the_systems_unit_is_the_users_with_more() -> None:
    user_lines, system_lines = (settings_of(render_unit(unit)) for unit in (USER_UNIT, SYSTEM_UNIT))
    assert set(user_lines) - set(system_lines) == {"WantedBy=default.target"}
    assert "User=daemon" in system_lines
    assert 'ReadOnlyPaths="-/srv/my models/desired-state" "-/opt/rh"' in system_lines
    assert 'ReadWritePaths="/srv/my models/state"' in system_lines


def test_texts_are_written_so_that_systemd_reads_them_as_they_are() -> None:
    lines = settings_of(render_unit(USER_UNIT))
    assert 'Environment="ROUNDHOUSE_MODELS=models 100%%"' in lines
    assert 'Environment="PATH=/usr/bin:/opt/$x/bin"' in lines
    assert "WorkingDirectory=/srv/my models" in lines
    assert 'ExecStart="/bin/true" service run' in lines


@pytest.mark.parametrize("text", ['a"b', "a\\b", "a\nExecStart=/bin/evil", "a\x00"])
def test_what_would_mean_something_else_is_refused(text: str) -> None:
    for unit in (replace(USER_UNIT, environment={"PATH": text}), replace(USER_UNIT, state=Path("/srv") / text)):
        with pytest.raises(UnitTextError, match="cannot stand in a unit"):
            render_unit(unit)


def test_whose_unit_it_is() -> None:
    assert find_state(render_unit(USER_UNIT)) == "/srv/my models/state"
    assert find_state(render_unit(replace(USER_UNIT, state=Path("/a%b")))) == "/a%b"
    assert find_state("[Service]\nExecStart=/bin/true\n") is None
