"""The units that `roundhouse service install` writes, as text and as systemd's own checker reads them."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from controller.cli.service.unit import ServiceUnit, UnitTextError, find_state, render_unit
from tests.support.doc_tables import DOCS
from tests.support.require import require

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
