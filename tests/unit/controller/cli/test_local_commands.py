"""The commands that need no controller, the program itself, and what docs/cli.md says of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from controller import __version__
from controller.cli.app import app, run
from controller.cli.exit_codes import ExitCode
from controller.config.json_schema import schema_text
from controller.config.read import SCHEMA_FILE
from tests.support.doc_tables import DOCS, exit_rows, rows_of

COMMANDS = (
    "up",
    "down",
    "status",
    "top",
    "load",
    "unload",
    "reset",
    "plan",
    "drift",
    "events",
    "history",
    "logs",
    "pull",
    "models",
    "rm",
    "gpu",
    "validate",
    "doctor",
    "bench",
    "pause",
    "resume",
    "backup",
    "restore",
    "upgrade",
    "schema",
    "version",
)
GROUPS = ("declarations", "key", "rag", "service")
"""Commands with commands of their own."""


def write(folder: Path, text: str) -> Path:
    (folder / "models.yaml").write_text(text)
    return folder


def test_validate_a_good_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "models: {b: {backend: stub}, a: {backend: stub}}")
    assert run(["validate", str(tmp_path)]) == ExitCode.DONE
    assert capsys.readouterr().out == f"{tmp_path}: good; models: a, b\n"


def test_validate_tells_every_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "models:\n  chat:\n    backend: stub\n    replica: 2\n    enabled: on\n")
    assert run(["validate", str(tmp_path)]) == ExitCode.FAILED
    assert capsys.readouterr() == (
        f"{tmp_path}/models.yaml:4: models.chat.replica: unknown field; did you mean `replicas`?\n"
        f'{tmp_path}/models.yaml:5: models.chat.enabled: must be true or false, is the text "on"\n',
        "",
    )
    assert run(["validate", str(tmp_path), "--json"]) == ExitCode.FAILED
    assert json.loads(capsys.readouterr().out) == {
        "ok": False,
        "problems": [
            {
                "file": f"{tmp_path}/models.yaml",
                "line": 4,
                "field": "models.chat.replica",
                "message": "unknown field; did you mean `replicas`?",
            },
            {
                "file": f"{tmp_path}/models.yaml",
                "line": 5,
                "field": "models.chat.enabled",
                "message": 'must be true or false, is the text "on"',
            },
        ],
        "warnings": [],
        "downloads": {},
        "models": [],
        "keys": [],
        "tools": [],
        "mcp_servers": [],
    }


def test_validate_checks_paths_against_the_models_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "a.gguf").write_bytes(b"GGUF")
    write(tmp_path, f"models: {{a: {{model_path: {tmp_path}/weights/a.gguf}}}}")
    assert run(["validate", ".", "--models", "weights"]) == ExitCode.DONE
    assert run(["validate", ".", "--models", "others"]) == ExitCode.FAILED


def test_validate_warns_of_models_that_could_not_be_started_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = tmp_path / "models"
    models.mkdir()
    (models / "there.gguf").write_bytes(b"GGUF")
    (tmp_path / "elsewhere.gguf").write_bytes(b"GGUF")
    (models / "link.gguf").symlink_to(tmp_path / "elsewhere.gguf")
    write(
        tmp_path,
        "models: {good: {model_path: there.gguf}, gone: {model_path: theer.gguf}, linked: {model_path: link.gguf},"
        " demo: {backend: stub}}",
    )
    gone = f'model_path: theer.gguf is missing from {models}; did you mean "there.gguf"?'
    linked = (
        f"model_path: link.gguf is a symbolic link to {tmp_path}/elsewhere.gguf, outside the models folder {models}:"
        f" `ROUNDHOUSE_MODELS={models},{tmp_path}` (or `--models`) adds the folder {tmp_path}"
    )
    assert run(["validate", str(tmp_path), "--models", str(models)]) == ExitCode.PENDING
    assert capsys.readouterr() == (
        f"{tmp_path}: good, with 2 warnings; models: demo, gone, good, linked\n"
        f"warning: gone cannot be started here: {gone}\n"
        f"warning: linked cannot be started here: {linked}\n",
        "",
    )
    assert run(["validate", str(tmp_path), "--models", str(models), "--json"]) == ExitCode.PENDING
    answer = json.loads(capsys.readouterr().out)
    assert (answer["ok"], answer["problems"]) == (True, [])
    assert answer["warnings"] == [{"model": "gone", "message": gone}, {"model": "linked", "message": linked}]


def test_validate_warns_of_names_that_hide_a_route(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "models").mkdir()
    write(
        tmp_path,
        "models: {a/benchmark: {backend: stub}, b: {backend: stub, aliases: [a/status]}, a: {backend: stub},"
        " status: {backend: stub, aliases: [a/status/c]}}",
    )
    words = {
        model: f"`a/{route}` ends with `/{route}`, so `GET /v1/models/a/{route}` answers this model, and a model `a` "
        f"could not be asked for its {route} there: choose another name"
        for model, route in (("a/benchmark", "benchmark"), ("b", "status"))
    }
    assert run(["validate", str(tmp_path), "--models", str(tmp_path / "models")]) == ExitCode.PENDING
    assert capsys.readouterr().out == (
        f"{tmp_path}: good, with 2 warnings; models: a, a/benchmark, b, status\n"
        f"warning: a/benchmark: {words['a/benchmark']}\n"
        f"warning: b: {words['b']}\n"
    )
    assert run(["validate", str(tmp_path), "--models", str(tmp_path / "models"), "--json"]) == ExitCode.PENDING
    answer = json.loads(capsys.readouterr().out)
    assert answer["warnings"] == [{"model": name, "message": message} for name, message in words.items()]


def test_validate_without_the_models_folder_looks_at_no_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "models: {gone: {model_path: gone.gguf}}")
    away = tmp_path / "away"
    assert run(["validate", str(tmp_path), "--models", str(away)]) == ExitCode.DONE, "as where files are only edited"
    assert capsys.readouterr().out == (
        f"{tmp_path}: good; models: gone\n"
        f"not here: the models folder {away}; so the models' own files were not looked at\n"
    )


def test_validate_takes_models_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path, "models: {a: {model_path: ~/hub/a.gguf}}")
    assert run(["validate", str(tmp_path), "--models", "/srv/models"]) == ExitCode.FAILED
    advice = capsys.readouterr().out.split("`")[3]
    assert advice == f"ROUNDHOUSE_MODELS=/srv/models,{tmp_path}/hub"
    monkeypatch.setenv(*advice.split("=", 1))
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "a.gguf").write_bytes(b"GGUF")
    assert run(["validate", str(tmp_path)]) == ExitCode.DONE
    assert run(["validate", str(tmp_path), "--models", "models,~/hub"]) == ExitCode.DONE


def test_validate_takes_the_folder_as_an_option_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "models: {a: {backend: stub}}")
    assert run(["validate", "--desired", str(tmp_path), "--models", str(tmp_path)]) == ExitCode.DONE
    assert capsys.readouterr().out == f"{tmp_path}: good; models: a\n"
    assert run(["validate", str(tmp_path), "--desired", str(tmp_path)]) == ExitCode.USAGE
    assert capsys.readouterr().err == "roundhouse: the folder stands twice: as an argument and after --desired\n"


def test_validate_uses_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUNDHOUSE_DESIRED", str(write(tmp_path, "models: {}")))
    assert run(["validate"]) == ExitCode.DONE


def test_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema"]) == ExitCode.DONE
    assert capsys.readouterr().out == schema_text()
    assert run(["schema", "--write", "--desired", str(tmp_path)]) == ExitCode.DONE
    assert (tmp_path / SCHEMA_FILE).read_text() == schema_text()
    assert run(["schema", "--write", "--desired", str(tmp_path / "none")]) == ExitCode.FAILED
    assert "cannot be written: No such file or directory" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["version"]) == ExitCode.DONE
    assert run(["version", "--json"]) == ExitCode.DONE
    assert capsys.readouterr().out == f'roundhouse {__version__}\n{{\n  "version": "{__version__}"\n}}\n'


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["plann"], "No such command 'plann'"),
        (["status", "--colour"], "No such option"),
        (["up", "--port", "high"], "Invalid value for '--port'"),
        (["up", "--runtime", "podman"], "ROUNDHOUSE_RUNTIME: must be `process`, `docker` or `auto`, is `podman`"),
    ],
)
def test_a_wrong_command_line_is_one_line(arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == ExitCode.USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("roundhouse: ")
    assert line in err
    assert err.count("\n") == 1


def test_a_wrong_setting_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ROUNDHOUSE_STOP_TIMEOUT_S", "soon")
    assert run(["validate"]) == ExitCode.USAGE
    assert capsys.readouterr().err == "roundhouse: ROUNDHOUSE_STOP_TIMEOUT_S: must be a number, is `soon`\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_json(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert "--json" in result.output


def test_every_command_is_in_the_docs() -> None:
    cells = re.findall(r"^\| (`roundhouse .*?) \|", (DOCS / "cli.md").read_text(), re.MULTILINE)
    listed = [name for cell in cells for name in re.findall(r"`(?:roundhouse )?(\w+)`", cell)]
    assert sorted(listed) == sorted((*COMMANDS, *GROUPS))
    names = [command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands]
    names += [group.typer_instance.info.name for group in app.registered_groups if group.typer_instance]
    assert sorted(names) == sorted((*COMMANDS, *GROUPS))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_its_own_is_in_the_docs(command: str) -> None:
    shown = CliRunner().invoke(app, [command, "--help"]).output
    text = (DOCS / "cli.md").read_text()
    missing = {option for option in re.findall(r"--[a-z-]+", shown) if option not in text}
    # These are settings, and in docs/settings.md.
    assert missing <= {"--help", "--desired", "--models", "--runtime", "--host", "--port"}


def test_every_exit_code_is_in_the_docs() -> None:
    assert rows_of("cli.md", "Exit codes") == exit_rows()
    assert len({code.value for code in ExitCode}) == len(ExitCode)


def test_help_imports_nothing_heavy() -> None:
    """What a command needs is imported when it runs: `roundhouse --help` answers at once."""
    script = (
        "import sys; from controller.cli.app import run; code = run(['--help']); "
        "heavy = {'pydantic', 'aiohttp', 'docker', 'fastapi', 'ruamel', 'rich'} & set(sys.modules); "
        "sys.exit(f'imported: {heavy}' if heavy else code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_program_ends_with_the_exit_code(tmp_path: Path) -> None:
    environment = {**os.environ, "ROUNDHOUSE_DESIRED": str(tmp_path), "PATH": os.environ["PATH"]}
    program = Path(sys.executable).with_name("roundhouse")
    done = subprocess.run([program, "validate"], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == ExitCode.FAILED
    assert done.stdout == f"{tmp_path}: the folder holds no desired-state file (*.yaml, *.yml, *.json)\n"


def test_a_reader_that_leaves_causes_no_traceback(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("roundhouse")
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as output:
        done = subprocess.run([program, "schema"], stdout=output, stderr=subprocess.PIPE, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert done.returncode != 0


def test_without_a_command_it_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == ExitCode.DONE
    assert "Commands:" in capsys.readouterr().out
