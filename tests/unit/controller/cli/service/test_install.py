"""`roundhouse service install|remove` with a systemctl that writes down what it is asked."""

from __future__ import annotations

import json
import os
import pwd
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from controller.cli.app import app, run
from controller.cli.exit_codes import ExitCode
from controller.cli.service import install, systemd
from tests.support.doc_tables import DOCS

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

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.unit = folder / "config" / "systemd" / "user" / "roundhouse.service"
        self.calls_file = folder / "calls"
        self.refusal = folder / "refusal"
        self.set_active("inactive")

    def set_active(self, state: str) -> None:
        (self.folder / "active").write_text(f"{state}\n")

    def calls(self) -> list[str]:
        """What was asked that changes something, since the last look."""
        lines = self.calls_file.read_text().splitlines() if self.calls_file.exists() else []
        self.calls_file.unlink(missing_ok=True)
        return [line.replace("--no-ask-password ", "") for line in lines if " show " not in line]


@pytest.fixture
def machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(folder)
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
    monkeypatch.setattr(systemd, "BOOTED_FOLDER", folder / "booted")
    monkeypatch.setattr(systemd, "SYSTEM_UNITS", folder / "system-units")
    monkeypatch.setattr(systemd, "LINGER_FOLDER", folder / "linger")
    monkeypatch.chdir(folder)
    return made


def test_it_writes_the_unit_starts_nothing_and_says_what_to_type(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["service", "install", "--port", "9000"]) == ExitCode.DONE
    assert capsys.readouterr() == (
        f"wrote {machine.unit}\n"
        "next: systemctl --user enable --now roundhouse.service\n"
        f"next: loginctl enable-linger {LOGIN}    # else it runs only during logins of {LOGIN}\n",
        "",
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


def test_twice_is_as_once(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    (machine.folder / "linger" / LOGIN).touch()
    run(["service", "install"])
    written = machine.unit.stat().st_mtime_ns
    capsys.readouterr()
    assert run(["service", "install"]) == ExitCode.DONE
    assert capsys.readouterr().out == (
        f"{machine.unit} is as it should be\nnext: systemctl --user enable --now roundhouse.service\n"
    )
    assert machine.unit.stat().st_mtime_ns == written


def test_with_now_it_is_enabled_and_what_runs_takes_up_a_change(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    (machine.folder / "linger" / LOGIN).touch()
    assert run(["service", "install", "--now"]) == ExitCode.DONE
    assert machine.calls() == ["--user daemon-reload", "--user enable --now roundhouse.service"]
    assert capsys.readouterr().out == (
        f"wrote {machine.unit}\nenabled and started roundhouse.service\n"
        "next: journalctl --user --unit roundhouse.service --follow    # what it says\n"
    )
    machine.set_active("active")
    run(["service", "install", "--now", "--port", "9001"])
    assert machine.calls()[-1] == "--user restart roundhouse.service"
    run(["service", "install", "--port", "9002"])
    assert machine.calls() == ["--user daemon-reload"], "nobody said to restart it"
    assert "next: systemctl --user restart roundhouse.service\n" in capsys.readouterr().out


def test_remove_takes_away_what_install_wrote(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    run(["service", "install"])
    machine.calls()
    machine.set_active("active")
    assert run(["service", "remove"]) == ExitCode.FAILED
    assert capsys.readouterr().err == "roundhouse: roundhouse.service runs; `--now` stops it before it is removed\n"
    assert machine.unit.exists()
    assert run(["service", "remove", "--now"]) == ExitCode.DONE
    assert machine.calls() == ["--user disable --now roundhouse.service", "--user daemon-reload"]
    assert not machine.unit.exists()
    assert (machine.folder / "state").is_dir()
    assert capsys.readouterr().out == (
        f"removed {machine.unit}\n"
        f"next: roundhouse down --state {machine.folder}/state --runtime process    # ends engines that still run\n"
    )
    assert run(["service", "remove"]) == ExitCode.DONE
    assert capsys.readouterr().out == f"nothing to remove: there is no {machine.unit}\n"
    assert machine.calls() == []


def test_json(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["service", "install", "--json"]) == ExitCode.DONE
    told = json.loads(capsys.readouterr().out)
    assert (told["unit"], told["done"], told["notes"]) == (str(machine.unit), [f"wrote {machine.unit}"], [])
    assert told["next"][0] == "systemctl --user enable --now roundhouse.service"


def test_what_is_set_in_this_shell_alone_is_named(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROUNDHOUSE_TLS_CERT", "/etc/cert.pem")
    monkeypatch.setenv("ROUNDHOUSE_HOST", "0.0.0.0")
    monkeypatch.setenv("ROUNDHOUSE_KEY", "rh-secret")
    assert run(["service", "install"]) == ExitCode.DONE
    assert capsys.readouterr().err == (
        "roundhouse: set here and not in the unit: ROUNDHOUSE_TLS_CERT; "
        f"{machine.folder}/config/roundhouse/roundhouse.env may set them\n"
    )
    assert 'Environment="ROUNDHOUSE_HOST=0.0.0.0"\n' in machine.unit.read_text()
    assert "secret" not in machine.unit.read_text()


@pytest.mark.parametrize("command", ["install", "remove"])
def test_without_systemd_it_is_refused_in_a_sentence(
    machine: Machine, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (machine.folder / "booted").rmdir()
    assert run(["service", command]) == ExitCode.FAILED
    err = capsys.readouterr().err
    assert err.startswith("roundhouse: systemd does not run this machine (")
    assert "`roundhouse service run`" in err
    assert not machine.unit.exists()


def test_a_unit_of_somebody_else_is_left_alone(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.unit.parent.mkdir(parents=True)
    machine.unit.write_text("[Service]\nExecStart=/bin/true\n")
    for command in ("install", "remove"):
        assert run(["service", command]) == ExitCode.FAILED
        assert "was not written by `roundhouse service install` and stays" in capsys.readouterr().err
    assert machine.unit.read_text() == "[Service]\nExecStart=/bin/true\n"


def test_another_installation_takes_another_name(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    run(["service", "install"])
    assert run(["service", "install", "--state", "other"]) == ExitCode.FAILED
    assert f"serves another installation, with state folder {machine.folder}/state" in capsys.readouterr().err
    assert run(["service", "install", "--state", "other", "--name", "second"]) == ExitCode.DONE
    assert machine.unit.with_name("second.service").exists()


def test_a_manager_that_does_not_answer_is_one_line(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.refusal.write_text("Failed to connect to bus: No medium found\nand more\n")
    assert run(["service", "install"]) == ExitCode.FAILED
    assert capsys.readouterr().err == (
        "roundhouse: `systemctl --user daemon-reload`: Failed to connect to bus: No medium found; "
        "a user's systemd is reached from a login of that user (not by su or sudo)\n"
    )


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--user", "alice"], "--user goes with --system"),
        (["--name", "a b"], "--name a b: letters, digits"),
        (["--name", "../x"], "--name ../x: letters, digits"),
        (["--desired", "none"], "there is no folder"),
        (["--desired", 'de"sired'], "cannot stand in a unit of systemd"),
    ],
)
def test_what_cannot_be_is_one_line_and_nothing_is_written(
    machine: Machine, arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["service", "install", *arguments]) != ExitCode.DONE
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert line in err
    assert list(machine.folder.rglob("*.service")) == []
    assert machine.calls() == []


# For the machine.


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "--system needs --user NAME"),
        (["--user", "nobody-of-that-name"], "there is no user nobody-of-that-name; `adduser --system"),
        (["--user", "root"], "--user root: engines would be root"),
    ],
)
def test_the_machines_service_runs_as_a_user(
    machine: Machine,
    arguments: list[str],
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert run(["service", "install", "--system", *arguments]) != ExitCode.DONE
    assert line in capsys.readouterr().err
    assert not (machine.folder / "system-units").exists()


def test_the_machines_service_takes_root(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for command in (["install", "--system", "--user", "nobody"], ["remove", "--system"]):
        assert run(["service", *command]) == ExitCode.FAILED
        assert "takes root" in capsys.readouterr().err
    assert machine.calls() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")
def test_the_machines_service_is_written_with_a_state_folder_of_its_users(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(install, "PROGRAM", Path("/bin/true"))
    assert run(["service", "install", "--system", "--user", "nobody"]) == ExitCode.DONE
    unit = machine.folder / "system-units" / "roundhouse.service"
    assert capsys.readouterr().out == f"wrote {unit}\nnext: systemctl enable --now roundhouse.service\n"
    assert machine.calls() == ["daemon-reload"]
    assert "User=nobody\n" in unit.read_text()
    assert (machine.folder / "state").owner() == "nobody"
    os.chown(machine.folder / "state", 0, 0)
    assert run(["service", "install", "--system", "--user", "nobody"]) == ExitCode.FAILED
    assert f"nobody cannot write {machine.folder}/state: chown -R nobody: " in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")
def test_a_program_that_the_user_cannot_run_is_said_before_anything_is_written(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (machine.folder / "home").mkdir(mode=0o700)
    monkeypatch.setattr(install, "PROGRAM", machine.folder / "home" / "roundhouse")
    (machine.folder / "home" / "roundhouse").symlink_to("/bin/true")
    assert run(["service", "install", "--system", "--user", "nobody"]) == ExitCode.FAILED
    assert "nobody cannot run" in capsys.readouterr().err
    assert not (machine.folder / "system-units").exists()


@pytest.mark.parametrize("command", ["install", "remove", "run"])
def test_every_option_is_in_the_docs(command: str) -> None:
    shown = CliRunner().invoke(app, ["service", command, "--help"]).output
    text = (DOCS / "cli.md").read_text()
    missing = {option for option in re.findall(r"--[a-z-]+", shown) if option not in text}
    # These are settings, and in docs/settings.md.
    assert missing <= {"--help", "--desired", "--models", "--host", "--port"}
