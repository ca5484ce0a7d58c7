"""The commands that need no controller, the program itself, and what docs/cli.md says of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.app import app
from cli.output import SECTIONS, ExitCode
from controller import __version__
from controller.config.json_schema import schema_text
from controller.config.parse import SCHEMA_FILE
from controller.hosts import Gpu
from controller.runtimes.nvml import NvmlReader
from tests.support.cli import PROGRAM, Output, Roundhouse
from tests.support.doc_tables import DOCS, exit_rows, rows_of
from tests.support.gguf_files import write_llama

COMMANDS = [command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands]
GROUPS = [str(group.typer_instance.info.name) for group in app.registered_groups if group.typer_instance]
"""Commands with commands of their own."""


def write(folder: Path, text: str) -> Path:
    (folder / "models.yaml").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("text", "words", "lists"),
    [
        ("models: {b: {backend: stub}, a: {backend: stub}}", "models: a, b", {"models": ["a", "b"]}),
        (
            f"models: {{m: {{backend: stub}}}}\nkeys: {{b: {{sha256: {'b' * 64}}}, a: {{sha256: {'a' * 64}}}}}",
            "models: m; 2 keys",
            {"keys": ["a", "b"]},
        ),
        (
            "models: {}\ntools: {calculate: {}}\nmcp_servers: {b: {command: [b]}, a: {url: https://a/}}",
            "models: none; 1 tool; 2 MCP servers",
            {"tools": ["calculate"], "mcp_servers": ["a", "b"]},
        ),
    ],
)
def test_validate_counts_what_a_good_folder_declares(
    tmp_path: Path, roundhouse: Roundhouse, text: str, words: str, lists: dict[str, list[str]]
) -> None:
    write(tmp_path, text)
    command = ("validate", str(tmp_path), "--models", str(tmp_path))
    assert roundhouse(*command) == Output(ExitCode.DONE, f"{tmp_path}: good; {words}\n")
    as_json = roundhouse(*command, "--json")
    assert as_json.code == ExitCode.DONE
    assert as_json.json | lists == as_json.json


def test_validate_shows_every_problem(tmp_path: Path, roundhouse: Roundhouse) -> None:
    write(tmp_path, "models:\n  chat:\n    backend: stub\n    replica: 2\n    enabled: on\n")
    problems = (
        (4, "models.chat.replica", "unknown field; did you mean `replicas`?"),
        (5, "models.chat.enabled", 'must be true or false, is the text "on"'),
    )
    file = f"{tmp_path}/models.yaml"
    out = "".join(f"{file}:{line}: {field}: {message}\n" for line, field, message in problems)
    assert roundhouse("validate", str(tmp_path)) == Output(ExitCode.FAILED, out)
    as_json = roundhouse("validate", str(tmp_path), "--json")
    assert as_json.code == ExitCode.FAILED
    assert as_json.json == {
        "ok": False,
        "problems": [
            {"file": file, "line": line, "field": field, "message": message} for line, field, message in problems
        ],
        "warnings": [],
        "downloads": {},
        "models": [],
        "keys": [],
        "tools": [],
        "mcp_servers": [],
    }


def test_validate_checks_paths_against_the_models_folder(
    tmp_path: Path, roundhouse: Roundhouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "a.gguf").write_bytes(b"GGUF")
    write(tmp_path, f"models: {{a: {{model_path: {tmp_path}/weights/a.gguf}}}}")
    assert roundhouse("validate", ".", "--models", "weights").code == ExitCode.DONE
    assert roundhouse("validate", ".", "--models", "others").code == ExitCode.FAILED


def check_warnings(
    roundhouse: Roundhouse, folder: Path, words: str, lines: list[str], warnings: dict[str, str]
) -> None:
    """`validate` warns so, by model, and so it does as JSON."""
    arguments = ("validate", str(folder), "--models", str(folder / "models"))
    warned = [f"{folder}/models.yaml:1: warning: {line}" for line in lines]
    out = "\n".join([*warned, f"{folder}: good, with 2 warnings; {words}", ""])
    assert roundhouse(*arguments) == Output(ExitCode.PENDING, out)
    as_json = roundhouse(*arguments, "--json")
    assert (as_json.code, as_json.json["ok"], as_json.json["problems"]) == (ExitCode.PENDING, True, [])
    assert as_json.json["warnings"] == [{"model": name, "message": message} for name, message in warnings.items()]


def test_validate_warns_of_models_that_could_not_be_started_here(tmp_path: Path, roundhouse: Roundhouse) -> None:
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
    warnings = {
        "gone": f"model_path: theer.gguf is missing from {models}; did you mean `there.gguf`?",
        "linked": f"model_path: link.gguf is a symbolic link to {tmp_path}/elsewhere.gguf, outside the models folder "
        f"{models}: `ROUNDHOUSE_MODELS={models},{tmp_path}` (or `--models`) adds the folder {tmp_path}",
    }
    lines = [f"{name} cannot be started here: {message}" for name, message in warnings.items()]
    check_warnings(roundhouse, tmp_path, "models: demo, gone, good, linked", lines, warnings)


def test_validate_warns_of_models_that_never_have_room_here(
    tmp_path: Path, roundhouse: Roundhouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    write(
        tmp_path,
        "models: {fits: {backend: stub, memory_mib: 100}, huge: {backend: stub, memory_mib: 101},"
        " wide: {backend: stub, memory_mib: 999999999}}",
    )
    monkeypatch.setenv("ROUNDHOUSE_ENGINES_MEMORY_MIB", "100")
    remedy = "lower `memory_mib`, raise ROUNDHOUSE_ENGINES_MEMORY_MIB, or take a smaller model"
    warnings = {
        name: f"it needs {mib} MiB of main memory; free: 100 of the 100 MiB that engines may take: {remedy}"
        for name, mib in (("huge", 101), ("wide", 999_999_999))
    }
    lines = [f"{name} cannot be started here: {message}" for name, message in warnings.items()]
    check_warnings(roundhouse, tmp_path, "models: fits, huge, wide", lines, warnings)
    monkeypatch.delenv("ROUNDHOUSE_ENGINES_MEMORY_MIB")
    assert "101 MiB" not in roundhouse("validate", str(tmp_path)).out


def test_validate_warns_of_models_whose_predicted_memory_is_more_than_there_is(
    tmp_path: Path, roundhouse: Roundhouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of GPUs only where a model has some, and the driver reports any."""
    (tmp_path / "models").mkdir()
    write_llama(tmp_path / "models" / "m.gguf", layers=32, width=256, heads=8, kv_heads=8, head=128, context=65536)
    gpus: tuple[Gpu, ...] = (Gpu("GPU-a", 0, "NVIDIA X", 20),)
    asked: list[NvmlReader] = []

    def answer(reader: NvmlReader) -> tuple[Gpu, ...]:
        asked.append(reader)
        return gpus

    monkeypatch.setattr(NvmlReader, "read_gpus", answer)
    monkeypatch.setenv("ROUNDHOUSE_ENGINES_MEMORY_MIB", "1000")
    fields = "model_path: m.gguf, llama_server_n_ctx"
    write(tmp_path, f"models: {{fits: {{{fields}: 512}}, long: {{{fields}: 32768, autoload: true}}}}")
    warned = roundhouse("validate", str(tmp_path), "--models", str(tmp_path / "models"))
    room = (
        r"free: 1000 of the 1000 MiB that engines may take: declare a smaller context, raise \S+, or take a smaller .*"
    )
    line = rf"{tmp_path}/models.yaml:1: warning: long cannot be started here: it needs \d+ MiB of main memory; {room}"
    assert warned.code == ExitCode.PENDING
    assert re.fullmatch(line, warned.lines[0]), warned.out
    assert warned.lines[1:] == [f"{tmp_path}: good, with 1 warning; models: fits, long"]
    assert asked == [], "no model runs on GPUs"
    write(tmp_path, f"models: {{long: {{{fields}: 32768, gpus: 1}}}}")
    warned = roundhouse("validate", str(tmp_path), "--models", str(tmp_path / "models"))
    line = r".*: warning: long cannot be started here: it needs \d+ MiB on each of 1 GPU; free: GPU 0 has 20 of 20 .*"
    assert re.fullmatch(line, warned.lines[0]), warned.out
    gpus = ()
    assert roundhouse("validate", str(tmp_path), "--models", str(tmp_path / "models")).code == ExitCode.DONE


def test_validate_warns_of_names_that_hide_a_route(tmp_path: Path, roundhouse: Roundhouse) -> None:
    (tmp_path / "models").mkdir()
    write(
        tmp_path,
        "models: {a/benchmark: {backend: stub}, b: {backend: stub, aliases: [a/status]}, a: {backend: stub},"
        " status: {backend: stub, aliases: [a/status/c]}}",
    )
    warnings = {
        model: f"`a/{route}` ends with `/{route}`, so `GET /v1/models/a/{route}` answers this model, and a model `a` "
        f"could not be asked for its {route} there: choose another name"
        for model, route in (("a/benchmark", "benchmark"), ("b", "status"))
    }
    lines = [f"{name}: {message}" for name, message in warnings.items()]
    check_warnings(roundhouse, tmp_path, "models: a, a/benchmark, b, status", lines, warnings)


def test_validate_without_the_models_folder_looks_at_no_files(tmp_path: Path, roundhouse: Roundhouse) -> None:
    write(tmp_path, "models: {gone: {model_path: gone.gguf}}")
    assert roundhouse("validate", str(tmp_path), "--models", str(tmp_path / "away")) == Output(
        ExitCode.DONE,  # as where files are only edited
        f"{tmp_path}: good; models: gone\n"
        f"not here: the models folder {tmp_path}/away; so the models' own files were not looked at\n",
    )


def test_validate_takes_models_where_they_are(
    tmp_path: Path, roundhouse: Roundhouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path, "models: {a: {model_path: ~/hub/a.gguf}}")
    refused = roundhouse("validate", str(tmp_path), "--models", "/srv/models")
    advice = refused.out.split("`")[3]
    assert (refused.code, advice) == (ExitCode.FAILED, f"ROUNDHOUSE_MODELS=/srv/models,{tmp_path}/hub")
    monkeypatch.setenv(*advice.split("=", 1))
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "a.gguf").write_bytes(b"GGUF")
    assert roundhouse("validate", str(tmp_path)).code == ExitCode.DONE
    assert roundhouse("validate", str(tmp_path), "--models", "models,~/hub").code == ExitCode.DONE


def test_validate_takes_the_folder_as_an_option_and_a_setting_too(
    tmp_path: Path, roundhouse: Roundhouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "models: {a: {backend: stub}}")
    good = Output(ExitCode.DONE, f"{tmp_path}: good; models: a\n")
    assert roundhouse("validate", "--desired", str(tmp_path), "--models", str(tmp_path)) == good
    line = "roundhouse: the folder stands twice: as an argument and after --desired\n"
    assert roundhouse("validate", str(tmp_path), "--desired", str(tmp_path)) == Output(ExitCode.USAGE, err=line)
    monkeypatch.setenv("ROUNDHOUSE_DESIRED", str(tmp_path))
    monkeypatch.setenv("ROUNDHOUSE_MODELS", str(tmp_path))
    assert roundhouse("validate") == good


def test_the_schema_is_printed_and_written(tmp_path: Path, roundhouse: Roundhouse) -> None:
    assert roundhouse("schema") == Output(ExitCode.DONE, schema_text())
    assert roundhouse("schema", "--write", "--desired", str(tmp_path)).code == ExitCode.DONE
    assert (tmp_path / SCHEMA_FILE).read_text() == schema_text()
    unwritten = roundhouse("schema", "--write", "--desired", str(tmp_path / "none"))
    assert unwritten.code == ExitCode.FAILED
    assert "cannot be written: No such file or directory" in unwritten.err


def test_the_version_is_printed_and_given_as_json(roundhouse: Roundhouse) -> None:
    assert roundhouse("version") == Output(ExitCode.DONE, f"roundhouse {__version__}\n")
    assert roundhouse("version", "--json") == Output(ExitCode.DONE, f'{{\n  "version": "{__version__}"\n}}\n')


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["plann"], "No such command 'plann'"),
        (["status", "--colour"], "No such option"),
        (["up", "--port", "high"], "Invalid value for '--port'"),
        (["up", "--runtime", "podman"], "ROUNDHOUSE_RUNTIME: must be `process`, `docker` or `auto`, is `podman`"),
        (["upgrade"], "`upgrade --check`"),
    ],
)
def test_a_wrong_command_line_is_one_line(arguments: list[str], line: str, roundhouse: Roundhouse) -> None:
    code, out, err = roundhouse(*arguments)
    assert (code, out, err.count("\n")) == (ExitCode.USAGE, "", 1)
    assert err.startswith("roundhouse: ")
    assert line in err


def test_a_wrong_setting_is_one_line(roundhouse: Roundhouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUNDHOUSE_STOP_TIMEOUT_S", "soon")
    line = "roundhouse: ROUNDHOUSE_STOP_TIMEOUT_S: must be a number, is `soon`\n"
    assert roundhouse("validate") == Output(ExitCode.USAGE, err=line)


def test_every_command_is_in_the_docs() -> None:
    cells = re.findall(r"^\| (`roundhouse .*?) \|", (DOCS / "cli.md").read_text(), re.MULTILINE)
    listed = [name for cell in cells for name in re.findall(r"`(?:roundhouse )?(\w+)`", cell)]
    assert sorted(listed) == sorted([*COMMANDS, *GROUPS])


@pytest.mark.parametrize("command", [*COMMANDS, "key new", "service install", "service remove", "service run"])
def test_every_option_of_its_own_is_in_the_docs(command: str) -> None:
    help_page = CliRunner().invoke(app, [*command.split(), "--help"])
    assert help_page.exit_code == 0
    assert "--json" in help_page.output or command in ("chat", "head", "join", "leave", "service run")
    text = (DOCS / "cli.md").read_text()
    missing = {option for option in re.findall(r"--[a-z-]+", help_page.output) if option not in text}
    # These are settings, and in docs/settings.md.
    assert missing <= {"--help", "--desired", "--models", "--runtime", "--host", "--port"}


def test_help_is_a_screen_of_whole_lines_in_sections(roundhouse: Roundhouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = roundhouse("--help").lines
    assert len(lines) <= 62
    assert [line for line in lines if line.endswith(":")] == ["Options:", *(f"{each}:" for each in SECTIONS)]
    assert set(COMMANDS) | set(GROUPS) <= {line.split()[0] for line in lines if line.startswith("  ")}
    assert not [
        line
        for group in ("", *GROUPS)
        for line in roundhouse(*group.split(), "--help").lines
        if "..." in line and "Usage:" not in line
    ]


def test_every_exit_code_is_in_the_docs() -> None:
    assert rows_of("cli.md", "Exit codes") == exit_rows()
    assert len({code.value for code in ExitCode}) == len(ExitCode)


def test_help_imports_nothing_heavy() -> None:
    """What a command needs is imported when it runs: `roundhouse --help` answers at once."""
    script = (
        "import sys; from cli.app import run; code = run(['--help']); "
        "heavy = {'pydantic', 'aiohttp', 'docker', 'fastapi', 'ruamel', 'rich'} & set(sys.modules); "
        "sys.exit(f'imported: {heavy}' if heavy else code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_program_ends_with_the_exit_code(tmp_path: Path) -> None:
    environment = {**os.environ, "ROUNDHOUSE_DESIRED": str(tmp_path)}
    done = subprocess.run([PROGRAM, "validate"], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == ExitCode.FAILED
    assert done.stdout == f"{tmp_path}: the folder holds no desired-state file (*.yaml, *.yml, *.json)\n"


def test_a_reader_that_leaves_causes_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as output:
        done = subprocess.run([PROGRAM, "schema"], stdout=output, stderr=subprocess.PIPE, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert done.returncode != 0


def test_without_a_command_it_is_help(roundhouse: Roundhouse) -> None:
    code, out, _ = roundhouse()
    assert code == ExitCode.DONE
    assert "Serve:" in out
